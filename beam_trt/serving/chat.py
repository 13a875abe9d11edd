"""Chats as the checkpoint defines them: prompts by its chat template, answers by its response
template through transformers' own parser.

Knows nothing about sampling or servers. A parse never loses text: what the model wrote twice is
joined, and what belongs to no part of a message stays in the raw text its caller holds.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from beam_trt.errors import RequestError
from beam_trt.serving.text import Tokenizer

EFFORTS = ("low", "medium", "high", "xhigh", "max")
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
_JOIN = "\n\n"


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a chat prompt is rendered from. `messages` as in OpenAI's chat API (tool call arguments
    as an object or as JSON text), `tools` with JSON schemas, `template_kwargs` whatever else the
    template understands (preserve_thinking). Raises RequestError naming the part that is wrong."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    reasoning_effort: str | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.messages:
            raise RequestError("messages: expected at least one message, got none.")
        checked = tuple(_check_message(at, message) for at, message in enumerate(self.messages))
        object.__setattr__(self, "messages", checked)
        for at, tool in enumerate(self.tools):
            _check_tool(at, tool)
        if self.reasoning_effort is not None and self.reasoning_effort not in EFFORTS:
            raise RequestError(
                f"reasoning_effort: expected one of {', '.join(EFFORTS)}, "
                f"got {self.reasoning_effort!r}."
            )
        taken = sorted(set(self.template_kwargs) & {"messages", "tools", "reasoning_effort"})
        if taken:
            raise RequestError(
                f"chat_template_kwargs: {taken[0]} is an input of its own. Send it as that input."
            )


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """What some more text added to a message: deltas of reasoning and answer, whole tool calls
    ({"type": "function", "function": {"name", "arguments"}}) as they close."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A parsed answer: its deltas joined, whatever pieces they came in."""

    reasoning: str
    content: str
    tool_calls: tuple[dict[str, Any], ...]


class ChatFormat:
    """Renders and parses with one tokenizer's templates. Safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def render(self, request: ChatRequest) -> str:
        """The prompt text, ending where the assistant goes on; encode it without adding special
        tokens. RequestError where the tokenizer has no template or the template refuses."""
        from jinja2 import TemplateError

        if not self._tokenizer.hf.chat_template:
            raise RequestError(
                f"messages: the tokenizer in {self._tokenizer.folder} has no chat template. "
                "Send the whole prompt as text_input, or build from a checkpoint with a template."
            )
        kwargs = dict(request.template_kwargs)
        if request.reasoning_effort is not None:
            kwargs["reasoning_effort"] = request.reasoning_effort
        try:
            text: str = self._tokenizer.hf.apply_chat_template(
                list(request.messages),
                tools=list(request.tools) or None,
                tokenize=False,
                add_generation_prompt=True,
                **kwargs,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise RequestError(
                f"messages: the chat template of {self._tokenizer.folder} refused them: {error}."
            ) from error
        return text

    def parse(self, text: str, prompt: str, tools: Sequence[dict[str, Any]] = ()) -> ChatMessage:
        """One whole answer, `text` with special tokens kept, as `stream` would give it in pieces;
        `prompt` is what `render` gave and `tools` casts the arguments."""
        stream = self.stream(prompt, tools)
        stream.feed(text)
        stream.finish()
        return stream.message

    def stream(self, prompt: str, tools: Sequence[dict[str, Any]] = ()) -> "ChatStream":
        template = self._tokenizer.hf.response_template
        if template is None:
            raise RequestError(
                f"messages: the tokenizer in {self._tokenizer.folder} has no response_template to "
                "parse answers with. Send the rendered prompt as text_input instead."
            )
        parser = self._tokenizer.hf.get_response_parser(prefix=prompt, tools=list(tools) or None)
        return ChatStream(parser, template["fields"])


class ChatStream:
    """Parses one answer as it is generated. The deltas of any cutting of the text join to the same
    message; leading and trailing blanks of a part never appear, as in transformers' parser."""

    def __init__(self, parser: Any, fields: dict[str, Any]) -> None:
        self._parser = parser
        self._parts = {
            name: _TextPart(spec) for name, spec in fields.items() if name != "tool_calls"
        }
        self._tool_calls: list[dict[str, Any]] = []
        self._take(parser.initial_events)

    @property
    def message(self) -> ChatMessage:
        """Everything so far; the whole answer after `finish`."""
        reasoning = "".join(self._part_text(name) for name in _REASONING_FIELDS)
        return ChatMessage(reasoning, self._part_text("content"), tuple(self._tool_calls))

    def feed(self, text: str) -> ChatDelta:
        """What `text`, with special tokens kept, adds."""
        return self._take(self._parser.feed(text))

    def finish(self) -> ChatDelta:
        """Close what is still open. Call once, after the last `feed`."""
        _, events = self._parser.finalize()
        return self._take(events)

    def _part_text(self, name: str) -> str:
        part = self._parts.get(name)
        return part.text if part else ""

    def _take(self, events: list[dict[str, Any]]) -> ChatDelta:
        reasoning = content = ""
        calls: list[dict[str, Any]] = []
        for event in events:
            name = event["field"]
            if name == "tool_calls":
                if event["type"] == "region_close":
                    value = event["value"]
                    calls += value if isinstance(value, list) else [value]
                continue
            new = self._parts[name].take(event)
            if name == "content":
                content += new
            elif name in _REASONING_FIELDS:
                reasoning += new
        self._tool_calls += calls
        return ChatDelta(reasoning, content, tuple(calls))


class _TextPart:
    """One text field of a message, grown by the parser's events; blanks wait until it is certain
    that they are not at an end."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._strip = spec.get("content_args", {}).get("strip", True)
        self._join = spec.get("join") or _JOIN
        self._num_regions = 0
        self._at_start = True
        self._blanks = ""
        self.text = ""

    def take(self, event: dict[str, Any]) -> str:
        """Text that this event makes certain."""
        new = ""
        if event["type"] == "region_open":
            new = self._join if self._num_regions else ""
            self._num_regions += 1
            self._at_start, self._blanks = True, ""
        elif event["type"] == "region_chunk":
            new = self._chunk(event["text"])
        self.text += new
        return new

    def _chunk(self, text: str) -> str:
        if not self._strip:
            return text
        if self._at_start:
            text = text.lstrip()
            if not text:
                return ""
            self._at_start = False
        text = self._blanks + text
        kept = text.rstrip()
        self._blanks = text[len(kept) :]
        return kept


def _check_message(at: int, message: Any) -> dict[str, Any]:
    where = f"messages[{at}]"
    if not isinstance(message, dict):
        raise RequestError(f"{where}: expected an object, got {type(message).__name__}.")
    if not isinstance(message.get("role"), str):
        raise RequestError(f"{where}.role: expected a string, got {message.get('role')!r}.")
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise RequestError(
            f"{where}.content: expected text or a list of parts, got {type(content).__name__}."
        )
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict) or part.get("type") != "text":
            raise RequestError(
                f'{where}.content: expected parts {{"type": "text", "text": ...}}, got {part!r}.'
            )
    calls = message.get("tool_calls")
    if not calls:
        return message
    if not isinstance(calls, list):
        raise RequestError(f"{where}.tool_calls: expected a list, got {type(calls).__name__}.")
    return message | {
        "tool_calls": [
            _check_call(f"{where}.tool_calls[{i}]", call) for i, call in enumerate(calls)
        ]
    }


def _check_call(where: str, call: Any) -> dict[str, Any]:
    function: Any = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}: expected a function with a name, got {call!r}.")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise RequestError(f"{where}.function.arguments: not JSON: {error}.") from error
    if not isinstance(arguments, dict):
        raise RequestError(f"{where}.function.arguments: expected an object, got {arguments!r}.")
    return {**call, "function": {**function, "arguments": arguments}}


def _check_tool(at: int, tool: Any) -> None:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(
            f'tools[{at}]: expected {{"type": "function", "function": {{"name": ..., '
            f'"parameters": ...}}}}, got {tool!r}.'
        )
