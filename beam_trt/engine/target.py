"""What kind of folder a path is: an engine, a checkpoint, or a build that holds an engine."""

import json
from enum import StrEnum
from pathlib import Path

from beam_trt.engine.manifest import CONFIG_FILE
from beam_trt.errors import CheckpointError


class Kind(StrEnum):
    ENGINE = "engine"
    CHECKPOINT = "checkpoint"


def kind_of(path: Path) -> tuple[Kind, Path]:
    """The kind of `path` and the folder that is meant: a build's folder means its engine.
    CheckpointError for anything else, saying what was expected."""
    config = path / CONFIG_FILE
    if not config.is_file() and (path / "engine" / CONFIG_FILE).is_file():
        return Kind.ENGINE, path / "engine"
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise CheckpointError(
            f"{path}: expected a folder, found {found}. Give a checkpoint, an engine or a build."
        )
    try:
        raw = json.loads(config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: has no {CONFIG_FILE}, so it is neither a checkpoint nor an engine. Give the "
            "folder that save_pretrained or `beam-trt build` wrote."
        ) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{config}: cannot be read as JSON: {error}. Fetch or build it again."
        ) from error
    is_engine = isinstance(raw, dict) and "pretrained_config" in raw
    return (Kind.ENGINE if is_engine else Kind.CHECKPOINT), path
