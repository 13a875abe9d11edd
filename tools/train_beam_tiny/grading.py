"""Grades a generated reply: does it parse into a legal message, and is it the expected result."""

from typing import Any

from transformers import PreTrainedTokenizerBase

from .dialogues.exchange import Dialogue

_STOPS = ("<|return|>", "<|call|>")
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    "array": (list,), "object": (dict,),
}  # fmt: skip


def parse(tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue, prompt: str, new: str) -> Any:
    """The parsed message, or None where the reply does not end with a stop token, holds neither or
    both of answer and calls, calls an unknown tool, or gives an argument of the wrong type."""
    if not new.endswith(_STOPS):
        return None
    message = tokenizer.parse_response(new, prefix=prompt, tools=dialogue.tools)
    calls = message.get("tool_calls", [])
    if bool(calls) == bool(message.get("content")):
        return None
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in dialogue.tools}
    if all(_is_legal(call["function"], schemas) for call in calls):
        return message
    return None


def _is_legal(function: dict[str, Any], schemas: dict[str, Any]) -> bool:
    schema = schemas.get(function["name"])
    if schema is None or not set(schema["required"]) <= set(function["arguments"]):
        return False
    for name, value in function["arguments"].items():
        declared = schema["properties"].get(name)
        if declared is None or not isinstance(value, _PYTHON_TYPES[declared["type"]]):
            return False
        if isinstance(value, bool) and declared["type"] != "boolean":
            return False
        if "enum" in declared and value not in declared["enum"]:
            return False
    return True


def is_right(dialogue: Dialogue, message: Any) -> bool:
    """Whether the parsed message is the expected answer, or exactly the expected calls in order."""
    expected = dialogue.expected
    if "answer" in expected:
        return bool(message.get("content") == expected["answer"])
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return bool(calls == expected["tool_calls"])
