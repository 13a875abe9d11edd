# Word lists read best as running text.
# ruff: noqa: SIM905
"""Tools nobody has seen before: what is learned from them is to read the schema."""

from random import Random
from typing import Any

from .tool_family import Family, Maker, Parameter
from .tool_values import (
    BOOLEAN,
    INTEGER,
    INTEGERS,
    NUMBER,
    STRING,
    STRINGS,
    code,
    decimal,
    enum_schema,
    integer,
    one_of,
    several,
    status,
)
from .words import WORDS, made_up, thing

_VERBS = "scan fix move open close check start stop clean paint lock load test reset count".split()
_KEYS = (
    "mode level size name color speed key target source width height label depth phase angle code "
    "user owner channel index weight format group step"
).split()


def invented(rng: Random) -> Family:
    """A family nobody has seen: an arbitrary name and up to three arbitrary parameters, so that
    what is learned is to read the schema."""
    verb, noun = rng.choice(_VERBS), rng.choice(WORDS) if rng.random() < 0.5 else made_up(rng)
    kinds: tuple[tuple[dict[str, Any], Maker], ...] = (
        (STRING, made_up),
        (STRING, thing),
        (STRING, code),
        (INTEGER, integer(0, 999)),
        (NUMBER, decimal(0, 90)),
        (BOOLEAN, one_of(True, False)),
        (enum_schema("low", "mid", "high"), one_of("low", "mid", "high")),
        (INTEGERS, several(integer(1, 50), 1, 4)),
        (STRINGS, several(one_of(*WORDS), 1, 3)),
    )
    parameters = {}
    for key in rng.sample(_KEYS, rng.randint(1, 3)):
        schema, make = rng.choice(kinds)
        parameters[key] = Parameter((key,), schema, make, f"The {key}.")
    stated = ", ".join(f"{key} {{{key}}}" for key in parameters)
    name = f"{verb}_{noun}"
    return Family(
        "invented",
        (name,),
        (f"{verb.capitalize()} the {noun}.",),
        parameters,
        (
            f"{verb.capitalize()} the {noun} with {stated}.",
            f"Call {name} with {stated}.",
            f"Please {verb} the {noun}: {stated}.",
        ),
        (f"{verb.capitalize()} the {noun}.",),
        status,
        f"The {noun} is done.",
    )
