"""Exchanges with tools: one call, parallel calls, no tool that fits, a value missing."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

from .exchange import Call, Exchange, Step, Thought
from .tool_catalog import FAMILIES
from .tool_family import Family, Tool, ask, concrete, draw, spoken, written
from .tool_invented import invented
from .words import joined


def _family(rng: Random) -> Family:
    return invented(rng) if rng.random() < 0.25 else rng.choice(FAMILIES)


def distractors(rng: Random, taken: set[str], count: int) -> list[Tool]:
    """Concrete tools of families, and with names, not in `taken`."""
    chosen: list[Tool] = []
    while len(chosen) < count:
        tool = concrete(rng, invented(rng) if rng.random() < 0.2 else rng.choice(FAMILIES))
        if tool.family.key not in taken and tool.name not in taken:
            taken |= {tool.family.key, tool.name}
            chosen.append(tool)
    return chosen


def _schemas(rng: Random, needed: list[Tool]) -> tuple[dict[str, Any], ...]:
    """The needed tools among up to three others, in any order."""
    taken = {t.family.key for t in needed} | {t.name for t in needed}
    others = distractors(rng, taken, rng.choice((0, 0, 1, 1, 2, 3)))
    tools = needed + others
    rng.shuffle(tools)
    return tuple(tool.schema for tool in tools)


def _stated(call: Call) -> str:
    return ", ".join(f"{name} {written(value)}" for name, value in call.arguments.items())


def _call_thought(tools: list[Tool], drawn: list[dict[str, Any]], calls: list[Call]) -> Thought:
    tool, values = tools[0], drawn[0]
    names = joined(list(dict.fromkeys(call.name for call in calls)))
    if len(calls) == 1:
        work = f"I call {calls[0].name} with {_stated(calls[0])}."
    else:
        work = (
            f"I need {len(calls)} calls: "
            + "; ".join(f"{call.name} {_stated(call)}" for call in calls)
            + "."
        )
    return Thought(
        work=work,
        plan=f"The user wants what {names} can do.",
        check=f"Check the types: {tool.types(values)}.",
        confirm=f"Nothing required is missing: {', '.join(calls[0].arguments)}.",
    )


def _result_thought(results: list[dict[str, Any]]) -> Thought:
    told = "; ".join(", ".join(spoken(value) for value in result.values()) for result in results)
    calls = f"{len(results)} call{'s' if len(results) > 1 else ''}"
    return Thought(
        work=f"The tool says {told}.",
        plan="The result is there.",
        check=f"Check: {calls}, {len(results)} answered.",
        confirm="I tell the user what came back.",
    )


def _told(family: Family, values: dict[str, Any], result: dict[str, Any]) -> str:
    known = {key: spoken(value) for key, value in (values | result).items()}
    text = family.answer.format(**known)
    return text[0].upper() + text[1:] if family.key != "invented" else text


def _exchange(
    kind: str, user: str, tools: list[Tool], drawn: list[dict[str, Any]], schemas: Any, rng: Random
) -> Exchange:
    calls = [tool.call(values) for tool, values in zip(tools, drawn, strict=True)]
    results = [tool.family.result(rng) for tool in tools]
    answers = [
        _told(tool.family, values, result)
        for tool, values, result in zip(tools, drawn, results, strict=True)
    ]
    steps = (
        Step(
            _call_thought(tools, drawn, calls),
            calls=tuple(calls),
            results=tuple(json.dumps(result) for result in results),
        ),
        Step(_result_thought(results), answer=" ".join(answers)),
    )
    key = f"{kind} " + " ".join(
        f"{t.family.key} {_stated(c)}" for t, c in zip(tools, calls, strict=True)
    )
    return Exchange(kind, key, user, steps, schemas)


def single(rng: Random) -> Exchange:
    """One call of one tool."""
    family = _family(rng)
    tool = concrete(rng, family)
    values, extra = draw(rng, family)
    user = ask(rng.choice(family.asks), values, extra)
    kind = "tool_invented" if family.key == "invented" else "tool"
    return _exchange(kind, user, [tool], [values], _schemas(rng, [tool]), rng)


_REPEATABLE = tuple(family for family in FAMILIES if family.repeatable)


def parallel(rng: Random) -> Exchange:
    """Two or three calls at once: of one tool, or of two tools."""
    if rng.random() < 0.65:
        family = rng.choice(_REPEATABLE)
        tool = concrete(rng, family)
        key = next(iter(family.parameters))
        drawn: list[dict[str, Any]] = []
        template = rng.choice(family.asks)
        count = rng.choice((2, 2, 3))
        while len(drawn) < count:
            values = {k: p.make(rng) for k, p in family.parameters.items() if p.required}
            if drawn:
                values = drawn[0] | {key: values[key]}
            if values not in drawn:
                drawn.append(values)
        listed = joined([spoken(values[key]) for values in drawn])
        user = ask(template, drawn[0] | {key: listed}, "")
        return _exchange("parallel", user, [tool] * count, drawn, _schemas(rng, [tool]), rng)
    families = rng.sample(FAMILIES, 2)
    tools: list[Tool] = []
    asks: list[str] = []
    drawn = []
    for family in families:
        tool = concrete(rng, family)
        while tool.name in [t.name for t in tools]:
            tool = concrete(rng, family)
        values, extra = draw(rng, family)
        tools.append(tool)
        drawn.append(values)
        asks.append(ask(rng.choice(family.asks), values, extra))
    return _exchange("parallel_mixed", " ".join(asks), tools, drawn, _schemas(rng, tools), rng)


def no_tool(rng: Random) -> Exchange:
    """The user asks for what none of the tools does."""
    family = rng.choice(FAMILIES)
    values, extra = draw(rng, family)
    user = ask(rng.choice(family.asks), values, extra)
    tools = distractors(rng, {family.key, *family.names}, rng.randint(1, 3))
    names = joined([tool.name for tool in tools])
    thought = Thought(
        work=f"I have {names}. None fits.",
        plan="I look at my tools.",
        check="Check: no description matches the question.",
        confirm="A wrong call would not help.",
    )
    step = Step(thought, "I have no tool for that.")
    schemas = tuple(tool.schema for tool in tools)
    return Exchange("no_tool", f"no_tool {user} {names}", user, (step,), schemas)


def missing_value(rng: Random) -> Exchange:
    """The right tool is there but the user left out what it needs."""
    family = _family(rng)
    tool = concrete(rng, family)
    key = next(iter(family.parameters))
    name = tool.parameter_names[key].replace("_", " ")
    thought = Thought(
        work=f"{tool.name} needs the {name}, which is missing.",
        plan=f"The user wants what {tool.name} can do.",
        check="Check: the message holds no value.",
        confirm="I ask instead of guessing.",
    )
    user = rng.choice(family.bare)
    step = Step(thought, f"Please tell me the {name}.")
    schemas = _schemas(rng, [tool])
    return Exchange("missing_value", f"missing {tool.name} {name}", user, (step,), schemas)


TASKS: dict[Callable[[Random], Exchange], int] = {
    single: 34,
    parallel: 12,
    no_tool: 6,
    missing_value: 4,
}
