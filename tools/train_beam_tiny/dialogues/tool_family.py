"""What a family of tools is: its schema with interchangeable names, how users ask for it, what it
returns and how the result is told."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from .exchange import Call

Maker = Callable[[Random], Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: names it may have, its JSON schema, a value generator, and for an optional
    parameter the sentence part that asks for it ("{}" is the value as spoken)."""

    names: tuple[str, ...]
    schema: dict[str, Any]
    make: Maker
    describe: str
    asked: str = ""

    @property
    def required(self) -> bool:
        return not self.asked


@dataclass(frozen=True, slots=True)
class Family:
    """Tools that do the same under different names. Asks and answers are format strings over the
    parameters' keys; answers may also use the result's keys."""

    key: str
    names: tuple[str, ...]
    describe: tuple[str, ...]
    parameters: dict[str, Parameter]
    asks: tuple[str, ...]
    bare: tuple[str, ...]
    result: Callable[[Random], dict[str, Any]]
    answer: str
    repeatable: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """A family with its names chosen: one concrete schema."""

    family: Family
    name: str
    schema: dict[str, Any] = field(compare=False)
    parameter_names: dict[str, str] = field(compare=False)

    def call(self, values: dict[str, Any]) -> Call:
        """The call for `values`, keyed by the family's own parameter keys, in schema order."""
        arguments = {
            name: values[key] for key, name in self.parameter_names.items() if key in values
        }
        return Call(self.name, arguments)

    def types(self, values: dict[str, Any]) -> str:
        """ "city is a string, days is an integer" for the parameters in `values`."""
        properties = self.schema["function"]["parameters"]["properties"]
        return ", ".join(
            f"{name} is {'an' if properties[name]['type'][0] in 'aio' else 'a'} "
            f"{properties[name]['type']}"
            for key, name in self.parameter_names.items()
            if key in values
        )


def concrete(rng: Random, family: Family) -> Tool:
    """Choose the names, order, descriptions and optional parameters of a family's schema."""
    described = rng.random() < 0.5
    chosen: dict[str, str] = {}
    properties: dict[str, Any] = {}
    required = []
    for key, parameter in family.parameters.items():
        name = rng.choice(parameter.names)
        chosen[key] = name
        properties[name] = dict(parameter.schema)
        if described:
            properties[name]["description"] = parameter.describe
        if parameter.required:
            required.append(name)
    name = rng.choice(family.names)
    function = {
        "name": name,
        "description": rng.choice(family.describe),
        "parameters": {"type": "object", "properties": properties, "required": required},
    }
    return Tool(family, name, {"type": "function", "function": function}, chosen)


def draw(rng: Random, family: Family) -> tuple[dict[str, Any], str]:
    """Values for one call, and the sentence parts that ask for its optional parameters."""
    values, extra = {}, ""
    for key, parameter in family.parameters.items():
        if parameter.required or rng.random() < 0.4:
            values[key] = parameter.make(rng)
            if not parameter.required:
                extra += parameter.asked.format(spoken(values[key]))
    return values, extra


def spoken(value: Any) -> str:
    """A value as a user would write it in a sentence."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ", ".join(str(each) for each in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {each}" for key, each in value.items())
    return str(value)


def written(value: Any) -> str:
    """A value as the reasoning and the parameter text write it: strings raw, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def ask(template: str, values: dict[str, Any], extra: str) -> str:
    """The user's sentence; the optional parts go before its final mark."""
    text = template.format(**{key: spoken(value) for key, value in values.items()})
    mark = text[-1] if text[-1] in ".?!" else ""
    return text[: len(text) - len(mark)] + extra + mark
