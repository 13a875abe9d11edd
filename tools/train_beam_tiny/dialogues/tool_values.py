"""Parameter schemas and value generators that the tool families share."""

from random import Random
from typing import Any

from .tool_family import Maker
from .words import WORDS

STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}
BOOLEAN: dict[str, Any] = {"type": "boolean"}
STRINGS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
INTEGERS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}


def enum_schema(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


def one_of(*values: Any) -> Maker:
    return lambda rng: rng.choice(values)


def integer(low: int, high: int) -> Maker:
    return lambda rng: rng.randint(low, high)


def decimal(low: int, high: int) -> Maker:
    return lambda rng: (
        rng.randint(low, high) if rng.random() < 0.4 else rng.randint(low * 10 + 1, high * 10) / 10
    )


def clock(rng: Random) -> str:
    return f"{rng.randint(0, 23)}:{rng.choice((0, 15, 30, 45, 10, 50)):02d}"


def date(rng: Random) -> str:
    return f"20{rng.randint(24, 35)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def code(rng: Random) -> str:
    return f"{rng.choice('ABCDEFGHKLMNPRSTX')}-{rng.randint(100, 9999)}"


def symbol(rng: Random) -> str:
    return "".join(rng.choice("ABCDEFGHIKLMNOPRST") for _ in range(rng.randint(3, 4)))


def path(rng: Random) -> str:
    return "/" + "/".join(rng.choice(WORDS) for _ in range(rng.randint(1, 3)))


def several(make: Maker, low: int, high: int) -> Maker:
    def made(rng: Random) -> list[Any]:
        values: list[Any] = []
        size = rng.randint(low, high)
        while len(values) < size:
            value = make(rng)
            if value not in values:
                values.append(value)
        return values

    return made


def record(**makers: Maker) -> Maker:
    return lambda rng: {key: make(rng) for key, make in makers.items()}


def record_schema(**types: str) -> dict[str, Any]:
    return {"type": "object", "properties": {key: {"type": kind} for key, kind in types.items()}}


def status(rng: Random) -> dict[str, Any]:
    return {"status": rng.choice(("ok", "done", "success"))}


def single_value(key: str, make: Maker) -> Any:
    return lambda rng: {key: make(rng)}
