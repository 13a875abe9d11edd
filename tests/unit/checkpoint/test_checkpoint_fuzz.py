"""Random damage: either the checkpoint is still whole, or one clear error; never anything else."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.checkpoint.validate import validate
from beam_trt.errors import BeamTrtError

ROUNDS = 60
WEIRD = [None, True, -1, 0, 2**80, 1e400, "x", "", [], {}, [None], {"a": 1}, float("nan")]


def flip_header_bytes(folder: Path, rng: random.Random) -> None:
    shard = rng.choice(sorted(folder.glob("*.safetensors")))
    data = bytearray(shard.read_bytes())
    end = 8 + int.from_bytes(data[:8], "little")
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(end)] = rng.randrange(256)
    shard.write_bytes(data)


def cut_or_grow(folder: Path, rng: random.Random) -> None:
    shard = rng.choice(sorted(folder.glob("*.safetensors")))
    data = shard.read_bytes()
    keep = rng.randrange(len(data))
    shard.write_bytes(rng.choice([data[:keep], data[keep:], data + data[:keep]]))


def put_weird(value: Any, rng: random.Random) -> None:
    """Replace a random entry somewhere in nested JSON."""
    while isinstance(value, dict | list) and value:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if not isinstance(value[key], dict | list) or not value[key] or rng.random() < 0.3:
            value[key] = rng.choice(WEIRD)
            return
        value = value[key]


def weird_json(folder: Path, rng: random.Random) -> None:
    path = folder / rng.choice(["config.json", "config.json", "model.safetensors.index.json"])
    value = json.loads(path.read_text())
    put_weird(value, rng)
    path.write_text(json.dumps(value))


def weird_header(folder: Path, rng: random.Random) -> None:
    shard = rng.choice(sorted(folder.glob("*.safetensors")))
    data = shard.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    put_weird(header, rng)
    text = json.dumps(header).encode()
    shard.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])


def problem(folder: Path) -> str | None:
    """The one clear error, or None; any other exception is a failure of the test."""
    try:
        validate(CheckpointIndex.open(folder))
    except BeamTrtError as error:
        return str(error)
    return None


@pytest.mark.parametrize("damage", [flip_header_bytes, cut_or_grow, weird_json, weird_header])
def test_damage_is_a_clear_error(
    pristine: Path, tmp_path: Path, damage: Callable[[Path, random.Random], None]
) -> None:
    refused = 0
    for seed in range(ROUNDS):
        folder = tmp_path / "damaged"
        shutil.copytree(pristine, folder)
        damage(folder, random.Random(f"{damage.__name__} {seed}"))
        message = problem(folder)
        refused += message is not None
        assert message is None or str(folder) in message, f"{seed=}: {message}"
        shutil.rmtree(folder)
    assert refused > ROUNDS // 4
