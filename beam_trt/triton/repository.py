"""Writes the Triton model repository of an engine: two models, each a config.pbtxt and a thin
model.py, rendered from the templates in triton_repo/.

The repository holds no weights: it names the engine by a path relative to itself, so a build
folder can be moved as a whole.
"""

import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from beam_trt import __version__
from beam_trt.checkpoint.output import atomic_output
from beam_trt.engine.manifest import EngineConfig
from beam_trt.errors import EngineError
from beam_trt.triton.tensors import INPUTS, OUTPUTS, STREAMING_MODEL, UNARY_MODEL

REPOSITORY_FORMAT = 1
"""Raised by one whenever an older repository could not run with a newer beam-trt."""

MODELS = (STREAMING_MODEL, UNARY_MODEL)
_TEMPLATES = "beam_trt.triton_repo"


def write_repository(engine_dir: Path, out_dir: Path) -> dict[str, Any]:
    """Write the repository of `engine_dir` to `out_dir`, which must be new or empty.

    Returns {"path", "models", "engine"}, engine as written: relative to the repository. Raises
    EngineError where the engine is none or has no tokenizer, OutputError where nothing can be
    written.
    """
    config = EngineConfig.load(engine_dir)
    if not (config.tokenizer_dir / "tokenizer.json").is_file():
        raise EngineError(
            f"{config.tokenizer_dir}: expected the tokenizer that serving needs, found none. "
            "Build the engine from a checkpoint that has its tokenizer files."
        )
    relative = os.path.relpath(engine_dir.resolve(), out_dir.resolve())
    with atomic_output(out_dir) as staging:
        for name, text in render_repository(relative).items():
            path = staging / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return {"path": str(out_dir), "models": list(MODELS), "engine": relative}


def render_repository(engine: str) -> dict[str, str]:
    """File name -> content of the repository whose engine lies at `engine`, relative to it."""
    rendered = {}
    for model in MODELS:
        values = {
            "model": model,
            "decoupled": model == STREAMING_MODEL,
            "engine": engine,
            "inputs": INPUTS,
            "outputs": OUTPUTS,
            "version": __version__,
            "format": REPOSITORY_FORMAT,
        }
        rendered[f"{model}/config.pbtxt"] = _render("config.pbtxt.j2", values)
        rendered[f"{model}/1/model.py"] = _render("model.py.j2", values)
    return rendered


def _render(template: str, values: dict[str, Any]) -> str:
    from jinja2 import Environment, StrictUndefined

    source = files(_TEMPLATES).joinpath(template).read_text(encoding="utf-8")
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    # A path may hold any character; a string of config.pbtxt is written with JSON's escapes.
    return environment.from_string(source).render(values)
