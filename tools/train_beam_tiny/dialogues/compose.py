"""Composes exchanges into dialogues: effort, system message, earlier turns, distracting tools."""

import hashlib
from collections.abc import Callable
from random import Random
from typing import Any

from . import facts, numbers, social, spelling, tool_use
from .exchange import EFFORTS, Dialogue, Exchange, Step

_EFFORT_WEIGHTS = (20, 40, 20, 10, 10)
_SYSTEMS = (
    "You are Beam, a small helpful assistant.",
    "You are a helpful assistant.",
    "You are Beam. Answer briefly.",
    "You are an assistant that can use tools.",
    "Be helpful and precise.",
)
_HELD_OUT_SHARE = 25  # one content in 25 is never trained on

_PLAIN: dict[Callable[[Random], Exchange], int] = {
    **numbers.TASKS,
    **spelling.TASKS,
    **facts.TASKS,
    **social.TASKS,
}
_ALL: dict[Callable[[Random], Exchange], int] = {**_PLAIN, **tool_use.TASKS}

# Contents so few that all must be trained on: here only the wording around them is held out.
CLOSED_KINDS = frozenset(
    (
        "talk",
        "who",
        "capital",
        "calendar",
        "calendar_list",
        "opposite",
        "category",
        "unknown",
        "parity",
        "conversion",
    )
)


def is_held_out(exchange: Exchange) -> bool:
    """Whether this content (not its wording or names around it) is kept from training."""
    if exchange.kind in CLOSED_KINDS:
        return False
    digest = hashlib.sha256(exchange.key.encode()).digest()
    return digest[0] % _HELD_OUT_SHARE == 0


def _pick(rng: Random, tasks: dict[Callable[[Random], Exchange], int], held_out: bool) -> Exchange:
    """An exchange of the asked side of the split; closed kinds are on both sides."""
    task = rng.choices(list(tasks), weights=list(tasks.values()))[0]
    while True:
        exchange = task(rng)
        if exchange.kind in CLOSED_KINDS or is_held_out(exchange) == held_out:
            return exchange


def _assistant(step: Step, effort: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant"}
    thought = step.thought.written(effort)
    if thought:
        message["reasoning_content"] = thought
    if step.calls:
        message["tool_calls"] = [call.as_message() for call in step.calls]
    else:
        message["content"] = step.answer
    return message


def _turn(exchange: Exchange, effort: str) -> list[dict[str, Any]]:
    """The user message and every step, tool results between."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": exchange.user}]
    for step in exchange.steps:
        messages.append(_assistant(step, effort))
        for call, result in zip(step.calls, step.results, strict=True):
            messages.append({"role": "tool", "name": call.name, "content": result})
    return messages


def _worn(rng: Random, text: str) -> str:
    """The text as hurried users type it: now and then without capital or final mark."""
    if rng.random() < 0.08:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.08 and text[-1] in ".?!" and text.count("\n") == 0:
        text = text[:-1]
    return text


def dialogue(rng: Random, held_out: bool = False) -> Dialogue:
    """One dialogue that ends with the assistant's last step of the last exchange."""
    effort = rng.choices(EFFORTS, weights=_EFFORT_WEIGHTS)[0]
    history: list[Exchange] = []
    if rng.random() < 0.04:
        tell, last = social.memory(rng)
        while is_held_out(last) != held_out:
            tell, last = social.memory(rng)
        history.append(tell)
        if rng.random() < 0.6:
            history.append(_pick(rng, _PLAIN, held_out=False))
    else:
        last = _pick(rng, _ALL, held_out)
        if rng.random() < 0.2:
            history = [_pick(rng, _PLAIN, held_out=False) for _ in range(rng.choice((1, 1, 2, 3)))]
    tools = list(last.tools)
    if not tools and rng.random() < 0.12:
        tools = [tool.schema for tool in tool_use.distractors(rng, set(), rng.choice((1, 2)))]
    messages: list[dict[str, Any]] = []
    if last.system:
        messages.append({"role": "system", "content": last.system})
    elif rng.random() < 0.3:
        messages.append({"role": "system", "content": rng.choice(_SYSTEMS)})
    for exchange in history:
        messages += _turn(exchange, effort)
    turn = _turn(last, effort)
    turn[0]["content"] = _worn(rng, turn[0]["content"]) if last.kind != "repeat" else last.user
    messages += turn
    return Dialogue(
        kind=last.kind,
        effort=effort,
        messages=messages[:-1],
        reply=messages[-1],
        tools=tools,
        preserve_thinking=rng.random() < 0.15,
    )


def cut_at_call(whole: Dialogue) -> Dialogue | None:
    """The same dialogue asked one step earlier, where the right reply is the call; None for
    dialogues without a call in their last turn."""
    for index in range(len(whole.messages) - 1, -1, -1):
        message = whole.messages[index]
        if message["role"] == "user":
            return None
        if "tool_calls" in message:
            return Dialogue(
                kind=f"{whole.kind}_call",
                effort=whole.effort,
                messages=whole.messages[:index],
                reply=message,
                tools=whole.tools,
                preserve_thinking=whole.preserve_thinking,
            )
    return None
