"""Template and response parsing, as transformers applies them to the shipped tokenizer."""

from typing import Any

import pytest
from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "ship",
        "description": "Ship a parcel.",
        "parameters": {
            "type": "object",
            "properties": {
                "to": {"type": "string"},
                "count": {"type": "integer"},
                "weight": {"type": "number"},
                "express": {"type": "boolean"},
                "mode": {"type": "string", "enum": ["air", "sea"]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "address": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
            "required": ["to"],
        },
    },
}
ARGUMENTS: dict[str, Any] = {
    "to": "12", "count": 3, "weight": 2.5, "express": True, "mode": "air", "tags": ["a", "b c"],
    "address": {"city": "Oslo"},
}  # fmt: skip
USER = {"role": "user", "content": "Ship it."}


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def render(tokenizer: PreTrainedTokenizerBase, messages: list[Any], **options: Any) -> str:
    text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
    assert isinstance(text, str)
    return text


REPLIES: dict[str, dict[str, Any]] = {
    "answer": {"role": "assistant", "content": "Done."},
    "answer_over_lines": {"role": "assistant", "content": "One.\n\nTwo: <b> & {x}."},
    "reasoning_and_answer": {
        "role": "assistant", "reasoning_content": "Short.\nThen more.", "content": "Done.",
    },
    "call": {"role": "assistant", "tool_calls": [call("ship", ARGUMENTS)]},
    "call_without_arguments": {"role": "assistant", "tool_calls": [call("ship", {})]},
    "reasoning_and_parallel_calls": {
        "role": "assistant", "reasoning_content": "Two parcels.",
        "tool_calls": [call("ship", {"to": "Ann", "count": 1}), call("ship", {"to": "a\nb</x>"}),
                       call("ship", {"to": "", "express": False})],
    },
}  # fmt: skip


def completion(tokenizer: PreTrainedTokenizerBase, reply: dict[str, Any]) -> tuple[str, str]:
    """(prompt, what the model would write) for a reply."""
    prompt = render(tokenizer, [USER], tools=[TOOL], add_generation_prompt=True)
    whole = render(tokenizer, [USER, reply], tools=[TOOL])
    assert whole.startswith(prompt)
    return prompt, whole[len(prompt) :]


@pytest.mark.parametrize("name", REPLIES)
def test_what_the_template_writes_parses_back(
    tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    prompt, new = completion(tokenizer, REPLIES[name])
    assert tokenizer.parse_response(new, prefix=prompt, tools=[TOOL]) == REPLIES[name]
    ids = tokenizer(new)["input_ids"]
    assert tokenizer.decode(ids) == new
    prompt_ids = tokenizer(prompt)["input_ids"]
    assert tokenizer.parse_response(ids, prefix=prompt_ids, tools=[TOOL]) == REPLIES[name]


@pytest.mark.parametrize("name", REPLIES)
def test_streaming_at_every_chunk_size_is_one_shot(
    tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    prompt, new = completion(tokenizer, REPLIES[name])
    for size in range(1, len(new) + 1):
        parser = tokenizer.get_response_parser(prefix=prompt, tools=[TOOL])
        events = list(parser.initial_events)
        for begin in range(0, len(new), size):
            events += parser.feed(new[begin : begin + size])
        message, last = parser.finalize()
        assert message == REPLIES[name], size
        events += last
        answer = "".join(
            e["text"] for e in events if e["type"] == "region_chunk" and e["field"] == "content"
        )
        assert answer == REPLIES[name].get("content", ""), size


def test_values_stay_text_where_the_schema_says_so_or_the_cast_fails(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    reply = {"role": "assistant", "tool_calls": [call("ship", {"to": "7", "count": "seven"})]}
    prompt, new = completion(tokenizer, reply)
    message = tokenizer.parse_response(new, prefix=prompt, tools=[TOOL])
    assert message["tool_calls"][0]["function"]["arguments"] == {"to": "7", "count": "seven"}


def test_reasoning_goes_on_after_end_and_stops_are_return_and_call(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    stops = tokenizer.convert_tokens_to_ids(["<|return|>", "<|call|>", "<|endoftext|>"])
    _, new = completion(tokenizer, REPLIES["reasoning_and_parallel_calls"])
    ids = tokenizer(new)["input_ids"]
    assert [i for i, token in enumerate(ids) if token in stops] == [len(ids) - 1]
    assert new.count("<|end|><|start|>assistant") == 3


def test_default_effort_is_medium_and_unknown_ones_are_refused(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    assert render(tokenizer, [USER]) == render(tokenizer, [USER], reasoning_effort="medium")
    texts = {
        e: render(tokenizer, [USER], reasoning_effort=e) for e in ("low", "high", "xhigh", "max")
    }
    assert all(f"Reasoning effort: {effort}<|end|>" in text for effort, text in texts.items())
    with pytest.raises(TemplateError, match="low, medium, high, xhigh, max; got huge"):
        render(tokenizer, [USER], reasoning_effort="huge")


def test_earlier_reasoning_is_dropped_unless_preserved(tokenizer: PreTrainedTokenizerBase) -> None:
    talk = [USER, REPLIES["reasoning_and_answer"], {"role": "user", "content": "Again."}]
    assert "Then more." not in render(tokenizer, talk, add_generation_prompt=True)
    kept = render(tokenizer, talk, preserve_thinking=True, add_generation_prompt=True)
    assert "Then more.<|end|><|start|>assistant<|channel|>final" in kept
    # A conversation that keeps its reasoning extends what was generated, token by token.
    prompt, new = completion(tokenizer, REPLIES["reasoning_and_answer"])
    assert kept.startswith(prompt.replace(_tools_of(prompt), "") + new)


def _tools_of(prompt: str) -> str:
    return prompt[prompt.index("\nTools:") : prompt.index("<|end|>")]


def test_reasoning_of_the_running_turn_stays_with_its_calls(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    thinking = REPLIES["reasoning_and_parallel_calls"]
    result = {"role": "tool", "name": "ship", "content": {"status": "ok"}}
    text = render(tokenizer, [USER, thinking, result], tools=[TOOL], add_generation_prompt=True)
    assert "Two parcels." in text
    assert text.endswith('<|start|>tool ship<|message|>{"status": "ok"}<|end|><|start|>assistant')


def test_a_tool_result_is_named_by_its_call_id(tokenizer: PreTrainedTokenizerBase) -> None:
    asked = {"role": "assistant", "tool_calls": [{"id": "c1", **call("ship", {"to": "x"})}]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
    assert "<|start|>tool ship<|message|>ok<|end|>" in render(tokenizer, [USER, asked, result])


def test_what_the_template_cannot_render_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(TemplateError, match="unknown role critic"):
        render(tokenizer, [{"role": "critic", "content": "x"}])
    with pytest.raises(TemplateError, match="content parts must be text"):
        render(tokenizer, [{"role": "user", "content": [{"type": "image"}]}])
    wrong = {"role": "assistant", "tool_calls": [call("ship", {})]}
    wrong["tool_calls"][0]["function"]["arguments"] = "{}"  # type: ignore[index]
    with pytest.raises(TemplateError, match="must be an object"):
        render(tokenizer, [USER, wrong])


def test_any_text_survives_encoding(tokenizer: PreTrainedTokenizerBase) -> None:
    for text in ("naïve café 漢字 🙂", "a  b\t\tc\r\n\n d", "x=1_000; y='\\n'", " 12 345 "):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_word_is_cut_alike_wherever_it_stands(tokenizer: PreTrainedTokenizerBase) -> None:
    alone = tokenizer("Zubrovka")["input_ids"]
    for text in ('{"Zubrovka"}', "to Zubrovka.", "\nZubrovka\n"):
        ids = tokenizer(text)["input_ids"]
        assert any(ids[i : i + len(alone)] == alone for i in range(len(ids))), text
