"""Is a quantized checkpoint whole, consistent and loadable by others?

Each check stands for a fault seen in published checkpoints. Reads headers and scales; weights only
when asked. Changes nothing.
"""

import fnmatch
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from beam_trt.checkpoint import names
from beam_trt.checkpoint.index import INDEX_FILE, CheckpointIndex
from beam_trt.checkpoint.precision import HF_QUANT_CONFIG
from beam_trt.checkpoint.reader import CheckpointReader
from beam_trt.checkpoint.sidecars import CHAT_TEMPLATE, TOKENIZER, TOKENIZER_CONFIG
from beam_trt.checkpoint.validate import validate
from beam_trt.config.quant import Precision
from beam_trt.errors import CheckpointError, ConfigError

_SCALES = ("weight_scale", "weight_scale_2", "input_scale")
_TILE_ELEMENTS = 1 << 24
_AGAIN = "Quantize the original checkpoint again with `beam-trt quantize`."


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; `problems` is empty when it is right. Each problem names the
    tensor or file, what was expected and found, and the fix."""

    name: str
    problems: tuple[str, ...]

    @property
    def is_ok(self) -> bool:
        return not self.problems


def verify(folder: Path, values: bool = True, limit: int = 20) -> list[Check]:
    """Run every check on a checkpoint folder; at most `limit` problems each.

    `values=False` reads headers and scalars only (seconds at any size); otherwise every tensor is
    read too, a few rows at a time. Never raises for a bad checkpoint: damage is a problem in the
    list.
    """
    checks: list[Check] = []

    def run(name: str, problems: Iterator[str]) -> bool:
        found = []
        for problem in problems:
            found.append(problem)
            if len(found) == limit:
                break
        checks.append(Check(name, tuple(found)))
        return not found

    opened: list[CheckpointIndex] = []
    run("config, shards and index", _raised(lambda: opened.append(CheckpointIndex.open(folder))))
    run("tokenizer and chat template", _sidecar_problems(folder))
    if not opened:
        return checks
    index = opened[0]
    run("index file", _index_problems(index))
    if not run("names, shapes and dtypes", _raised(lambda: validate(index))):
        return checks
    run("what the metadata excludes", _metadata_problems(index))
    with CheckpointReader(index) as reader:
        if index.precision is Precision.NVFP4:
            run("scalars of NVFP4 groups", _nvfp4_scalar_problems(reader))
            if values:
                run("block scales", _scale_problems(reader))
        elif index.precision is Precision.FP8 and values:
            run("channel scales and weights", _scale_problems(reader))
        if values:
            run("plain tensors", _plain_problems(reader))
    return checks


def _raised(action: Callable[[], object]) -> Iterator[str]:
    try:
        action()
    except (CheckpointError, ConfigError) as error:
        yield str(error)


def _index_problems(index: CheckpointIndex) -> Iterator[str]:
    if index.precision.is_quantized and not (index.folder / INDEX_FILE).exists():
        yield (
            f"{index.folder}: expected {INDEX_FILE}, found none: some loaders need it even for one "
            f"file. {_AGAIN}"
        )


def _sidecar_problems(folder: Path) -> Iterator[str]:
    where = "Copy it from the original model."
    for name in (TOKENIZER, TOKENIZER_CONFIG):
        if not (folder / name).exists():
            yield f"{folder}: expected {name}, found none. {where}"
    try:
        config = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        config = {}
    except (OSError, ValueError) as error:
        yield f"{folder / TOKENIZER_CONFIG}: cannot be read as JSON: {error}. {where}"
        return
    inline = config.get("chat_template") if isinstance(config, dict) else None
    template = folder / CHAT_TEMPLATE
    if template.exists() and inline is not None:
        if not isinstance(inline, str) or inline.strip() != template.read_text("utf-8").strip():
            yield (
                f"{folder}: two different chat templates, {CHAT_TEMPLATE} and the one in "
                f"{TOKENIZER_CONFIG}: loaders disagree on which they take. Remove one."
            )
    elif not template.exists() and inline is None:
        yield f"{folder}: expected {CHAT_TEMPLATE}, found no chat template. {where}"


def _metadata_problems(index: CheckpointIndex) -> Iterator[str]:
    declared = index.raw_config.get("quantization_config")
    if not index.precision.is_quantized:
        return
    if declared is None:
        yield (
            f"{index.folder / 'config.json'}: expected a quantization_config, found none; only "
            f"{HF_QUANT_CONFIG} says how it is quantized, which not every loader reads. {_AGAIN}"
        )
    if index.precision is Precision.NVFP4:
        yield from _hf_quant_problems(index, declared)
    ignored = _ignored(index, declared)
    for module, is_quantized in _modules(index):
        matching = [pattern for pattern in ignored if _matches(pattern, module)]
        if is_quantized and matching:
            yield (
                f"{index.folder}: {module} is quantized, but the exclude pattern "
                f"{matching[0]!r} matches it: loaders would read it as plain. Fix the pattern."
            )
        elif not is_quantized and not matching:
            yield (
                f"{index.folder}: {module} is not quantized, but no exclude pattern matches it: "
                "loaders would expect scales. Add it to the excluded modules."
            )


def _hf_quant_problems(index: CheckpointIndex, declared: Any) -> Iterator[str]:
    path = index.folder / HF_QUANT_CONFIG
    try:
        quantization = json.loads(path.read_text(encoding="utf-8"))["quantization"]
        algorithm, excluded = quantization["quant_algo"], quantization["exclude_modules"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield f"{path}: expected ModelOpt's quantization settings, found {error!r}. {_AGAIN}"
        return
    if algorithm != "NVFP4":
        yield f"{path}: expected quant_algo NVFP4, found {algorithm!r}. {_AGAIN}"
    if declared is not None and sorted(declared.get("ignore") or []) != sorted(excluded):
        yield (
            f"{path}: its exclude_modules differ from config.json's ignore list: runtimes would "
            f"load different layers as quantized. {_AGAIN}"
        )


def _ignored(index: CheckpointIndex, declared: Any) -> list[str]:
    if isinstance(declared, dict):
        return [str(pattern) for pattern in declared.get("ignore") or []]
    sidecar = json.loads((index.folder / HF_QUANT_CONFIG).read_text(encoding="utf-8"))
    return [str(pattern) for pattern in sidecar["quantization"].get("exclude_modules", [])]


def _modules(index: CheckpointIndex) -> Iterator[tuple[str, bool]]:
    """Every module a loader may treat as a linear, and whether its weight is quantized."""
    config = index.config
    yield "lm_head", False
    for layer_idx in range(config.num_hidden_layers):
        if config.is_moe(layer_idx):
            yield names.router(layer_idx), False
        for group in names.linear_groups(config, layer_idx):
            for linear in group.linears:
                dtype = index.require(linear.weight).dtype
                yield linear.name, dtype not in names.PLAIN_DTYPES


def _matches(pattern: str, module: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    return fnmatch.fnmatchcase(module, pattern)


def _quantized_groups(index: CheckpointIndex) -> Iterator[names.LinearGroup]:
    for layer_idx in range(index.config.num_hidden_layers):
        for group in names.linear_groups(index.config, layer_idx):
            if index.quant.linear_precision(group.site.is_expert).is_quantized:
                yield group


def _nvfp4_scalar_problems(reader: CheckpointReader) -> Iterator[str]:
    for group in _quantized_groups(reader.index):
        for scale in ("weight_scale_2", "input_scale"):
            found = {
                linear.name: float(reader.tensor(f"{linear.name}.{scale}"))
                for linear in group.linears
            }
            for name, value in found.items():
                if not 0 < value < float("inf"):
                    yield (
                        f"{name}.{scale}: expected finite and > 0, found {value}: its outputs "
                        f"would be NaN or zero. {_AGAIN}"
                    )
            if len(set(found.values())) > 1:
                listed = ", ".join(f"{n.rsplit('.', 1)[1]} {v:.6g}" for n, v in found.items())
                yield (
                    f"{group.linears[0].name}.{scale}: expected one value for all that runtimes "
                    f"fuse, found {listed}. {_AGAIN}"
                )


def _scale_problems(reader: CheckpointReader) -> Iterator[str]:
    is_fp8 = reader.index.precision is Precision.FP8
    for group in _quantized_groups(reader.index):
        for linear in group.linears:
            scale = reader.tensor(f"{linear.name}.weight_scale").float()
            wrong = ~(scale.isfinite() & (scale > 0))
            if wrong.any():
                at = tuple(int(i) for i in wrong.nonzero()[0])
                yield (
                    f"{linear.name}.weight_scale: expected finite and > 0, found "
                    f"{float(scale[at])} at {list(at)} and {int(wrong.sum()) - 1} more. {_AGAIN}"
                )
            if is_fp8 and _has_nan(reader.tensor(linear.weight)):
                yield f"{linear.weight}: expected E4M3 numbers, found NaN. {_AGAIN}"


def _plain_problems(reader: CheckpointReader) -> Iterator[str]:
    """Every tensor that is not quantized, and no scale: its numbers must be finite."""
    for name, info in reader.index.tensors.items():
        if info.dtype not in names.PLAIN_DTYPES or name.endswith(_SCALES):
            continue
        row_elements = max(math.prod(info.shape[1:]), 1)
        step = max(_TILE_ELEMENTS // row_elements, 1)
        for start in range(0, info.shape[0], step):
            wrong = ~reader.slice(name, slice(start, start + step)).isfinite()
            if wrong.any():
                at = [int(i) for i in wrong.nonzero()[0]]
                yield (
                    f"{name}: expected finite numbers, found NaN or infinity at "
                    f"{[start + at[0], *at[1:]]}. The file is damaged: fetch or quantize it again."
                )
                break


def _has_nan(weight: torch.Tensor) -> bool:
    """E4M3 has two NaN codes, 0x7F and 0xFF."""
    return bool(((weight.view(torch.uint8) & 0x7F) == 0x7F).any())
