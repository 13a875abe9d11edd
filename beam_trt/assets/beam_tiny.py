"""Writes beam-tiny, the small trained Beam that ships as package data, as an ordinary HF folder.

Copies files; knows nothing about their contents and needs neither torch nor transformers.
"""

import os
import shutil
import tempfile
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from beam_trt.errors import OutputError

FILES = (
    "README.md",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)


def write(out_dir: Path) -> dict[str, Any]:
    """Write the checkpoint folder `out_dir`, which must not exist yet or be empty.

    The files are written beside `out_dir` and renamed into place, so an interrupted call leaves no
    half checkpoint. Returns {"path", "files": {name: bytes}, "num_bytes"}. Raises OutputError when
    `out_dir` is a file or holds something, or cannot be written.
    """
    out_dir = Path(os.path.abspath(out_dir))
    _require_empty(out_dir)
    staging: Path | None = None
    try:
        out_dir.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}.", dir=out_dir.parent))
        sizes = {name: _copy(name, staging / name) for name in FILES}
        staging.chmod(0o755)
        staging.replace(out_dir)
    except OSError as error:
        raise OutputError(
            f"{out_dir}: cannot write beam-tiny ({error.strerror or error}). "
            "Choose a writable folder on a disk with 12 MB free."
        ) from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
    return {"path": str(out_dir), "files": sizes, "num_bytes": sum(sizes.values())}


def _copy(name: str, target: Path) -> int:
    """Bytes copied; the copy has fresh permissions, since package data may be read-only."""
    with as_file(files("beam_trt.assets").joinpath("beam_tiny", name)) as source:
        shutil.copyfile(source, target)
    return target.stat().st_size


def _require_empty(out_dir: Path) -> None:
    if out_dir.is_dir():
        held = sorted(path.name for path in out_dir.iterdir())
        if held:
            raise OutputError(
                f"{out_dir}: expected a new or empty folder, found {len(held)} entries "
                f"({held[0]}, ...). Choose another folder or empty this one."
            )
    elif out_dir.exists():
        raise OutputError(
            f"{out_dir}: expected a new or empty folder, found a file. Choose another name."
        )
