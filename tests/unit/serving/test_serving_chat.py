"""Rendering equals transformers' apply_chat_template and parsing its parse_response, in any cut."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizer import tiny_chat, tiny_tokenizer

from beam_trt.errors import RequestError
from beam_trt.serving.chat import EFFORTS, ChatRequest

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "metric": {"type": "boolean"},
                "near": {"type": "array"},
            },
        },
    },
}
PROMPT = "<|start|>user<|message|>hi<|end|><|start|>assistant"
REASONING = "<|channel|>analysis<|message|> Let me think.\n\nTwice. <|end|>"
CALL = (
    " to=weather<|channel|>analysis <|constrain|>xml<|message|>"
    '<rfl:parameter name="city">\n<Paris> & 7\n</rfl:parameter>'
    '<rfl:parameter name="days">\n3\n</rfl:parameter>'
    '<rfl:parameter name="near">\n["a", 2]\n</rfl:parameter>'
    '<rfl:parameter name="metric">\nmaybe\n</rfl:parameter>'
)
ANSWER = "<|channel|>final<|message|>\n It is  sunny.\n"
NEXT = "<|start|>assistant"

RESPONSES = {
    "answer": f"{ANSWER}<|return|>",
    "reasoned": f"{REASONING}{NEXT}{ANSWER}<|return|>",
    "call": f"{REASONING}{NEXT}{CALL}<|call|>",
    "two_calls": f"{REASONING}{NEXT}{CALL}<|end|>{NEXT}{CALL}<|call|>",
    "reasoned_twice": f"{REASONING}{NEXT}{REASONING}{NEXT}{ANSWER}<|return|>",
    "empty_reasoning": f"<|channel|>analysis<|message|>  <|end|>{NEXT}{REASONING}{NEXT}{ANSWER}",
    "cut_answer": f"{REASONING}{NEXT}<|channel|>final<|message|>It is",
    "cut_call": f"{REASONING}{NEXT}{CALL[:120]}",
    "no_format": "just words",
    "nothing": "",
}


@pytest.mark.parametrize("effort", [None, *EFFORTS])
def test_render_equals_apply_chat_template(effort: str | None) -> None:
    messages = (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "reasoning_content": "hm",
            "content": None,
            "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}],
        },
        {"role": "tool", "name": "weather", "content": "sunny"},
    )
    request = ChatRequest(messages, (WEATHER,), effort, {"preserve_thinking": True})
    kwargs = {} if effort is None else {"reasoning_effort": effort}
    expected = tiny_tokenizer().hf.apply_chat_template(
        list(messages),
        tools=[WEATHER],
        tokenize=False,
        add_generation_prompt=True,
        preserve_thinking=True,
        **kwargs,
    )
    assert tiny_chat().render(request) == expected
    assert f"Reasoning effort: {effort or 'medium'}" in expected


def test_tool_call_arguments_may_be_json_text() -> None:
    def with_arguments(arguments: Any) -> str:
        call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
        user = {"role": "user", "content": "hi"}
        return tiny_chat().render(ChatRequest((user, {"role": "assistant", "tool_calls": [call]})))

    assert with_arguments('{"city": "Rome"}') == with_arguments({"city": "Rome"})


@pytest.mark.parametrize("name", RESPONSES)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
def test_any_cut_parses_as_parse_response(name: str, size: int) -> None:
    text = RESPONSES[name]
    expected = tiny_tokenizer().hf.parse_response(text, prefix=PROMPT, tools=[WEATHER])
    stream = tiny_chat().stream(PROMPT, [WEATHER])
    deltas = [stream.feed(text[at : at + size]) for at in range(0, len(text), size)]
    deltas.append(stream.finish())

    assert "".join(delta.reasoning for delta in deltas) == expected.get("reasoning_content", "")
    assert "".join(delta.content for delta in deltas) == expected.get("content", "")
    calls = [call for delta in deltas for call in delta.tool_calls]
    assert calls == expected.get("tool_calls", [])
    assert stream.message == tiny_chat().parse(text, PROMPT, [WEATHER])
    assert list(stream.message.tool_calls) == calls


def test_arguments_are_cast_by_the_tools_schema() -> None:
    message = tiny_chat().parse(RESPONSES["call"], PROMPT, [WEATHER])
    [call] = message.tool_calls
    assert call["function"] == {
        "name": "weather",
        # Raw text is not unescaped; what does not fit its type stays text.
        "arguments": {"city": "<Paris> & 7", "days": 3, "near": ["a", 2], "metric": "maybe"},
    }
    assert message.reasoning == "Let me think.\n\nTwice."


def test_an_answer_given_twice_is_kept_twice() -> None:
    text = f"{ANSWER}<|end|>{NEXT}{ANSWER}<|return|>"
    assert tiny_chat().parse(text, PROMPT).content == "It is  sunny.\n\nIt is  sunny."


@settings(deadline=None)
@given(st.lists(st.sampled_from([*RESPONSES.values(), " ", "\n", "é", "<|"]), max_size=6))
def test_deltas_join_to_the_message_for_any_text(parts: list[str]) -> None:
    text = "".join(parts)
    stream = tiny_chat().stream(PROMPT)
    deltas = [stream.feed(char) for char in text] + [stream.finish()]
    assert stream.message == tiny_chat().parse(text, PROMPT)
    assert "".join(delta.content for delta in deltas) == stream.message.content
    assert "".join(delta.reasoning for delta in deltas) == stream.message.reasoning


BAD_CHATS: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"messages": ()}, r"messages: expected at least one message, got none"),
    "no_object": ({"messages": ("hi",)}, r"messages\[0\]: expected an object, got str"),
    "no_role": ({"messages": ({"content": "hi"},)}, r"messages\[0\].role: expected a string"),
    "content": (
        {"messages": ({"role": "user", "content": 7},)},
        r"messages\[0\].content: expected text or a list of parts, got int",
    ),
    "image": (
        {"messages": ({"role": "user", "content": [{"type": "image_url"}]},)},
        r"messages\[0\].content: expected parts",
    ),
    "arguments": (
        {
            "messages": (
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "f", "arguments": "{"}}],
                },
            )
        },
        r"messages\[0\].tool_calls\[0\].function.arguments: not JSON",
    ),
    "tool": (
        {"messages": ({"role": "user", "content": "hi"},), "tools": ({"name": 3},)},
        r"tools\[0\]: expected",
    ),
    "effort": (
        {"messages": ({"role": "user", "content": "hi"},), "reasoning_effort": "huge"},
        r"reasoning_effort: expected one of low, medium, high, xhigh, max, got 'huge'",
    ),
    "kwargs": (
        {"messages": ({"role": "user", "content": "hi"},), "template_kwargs": {"tools": []}},
        r"chat_template_kwargs: tools is an input of its own",
    ),
}


@pytest.mark.parametrize("name", BAD_CHATS)
def test_bad_chats_say_what_is_wrong(name: str) -> None:
    fields, message = BAD_CHATS[name]
    with pytest.raises(RequestError, match=message):
        ChatRequest(**fields)


def test_what_the_template_refuses_is_a_request_error() -> None:
    request = ChatRequest(({"role": "narrator", "content": "hi"},))
    with pytest.raises(RequestError, match=r"chat template .* refused them: unknown role narrator"):
        tiny_chat().render(request)
