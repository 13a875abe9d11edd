"""Two checkpoints of one model, tensor by tensor: which bytes differ, and how far the weights are.

Formats may differ: an NVFP4 matrix is then compared with the FP8 or plain one by its value. Reads
rows of about a million elements at a time from both; changes nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from beam_trt.checkpoint import names
from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.checkpoint.reader import CheckpointReader
from beam_trt.checkpoint.validate import validate
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.quantize.primitives import Fp8Matrix, Nvfp4Matrix

Progress = Callable[[int, int], None]
"""Called with (tensors compared, tensors in all)."""

_TILE_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """One weight that is not the same in both. `what` says how, for a person; `relative` is
    |here - there| / |there| of the dequantized values in the Frobenius norm, None where they cannot
    be compared."""

    name: str
    what: str
    relative: float | None


@dataclass(frozen=True, slots=True)
class Differences:
    """The comparison of `here` with `there`. A weight counts once, with its scales."""

    here: str
    there: str
    formats: tuple[str, str]
    num_weights: int
    num_identical: int
    relative: float | None
    """Over the weights that differ."""
    largest: tuple[Difference, ...]
    """The `limit` worst, those that cannot be compared first."""

    @property
    def is_identical(self) -> bool:
        return self.num_identical == self.num_weights

    @property
    def is_same_format(self) -> bool:
        return self.formats[0] == self.formats[1]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "is_identical": self.is_identical}


def find_differences(
    here: Path, there: Path, limit: int = 20, progress: Progress | None = None
) -> Differences:
    """Compare the checkpoint folder `here` with `there`; the latter is the measure of `relative`.

    Raises CheckpointError where one of them is no whole Beam checkpoint.
    """
    first, second = CheckpointIndex.open(here), CheckpointIndex.open(there)
    validate(first)
    validate(second)
    with CheckpointReader(first) as a, CheckpointReader(second) as b:
        weights = dict.fromkeys((*_weights(first), *_weights(second)))
        found: list[Difference] = []
        total = _Distance()
        for number, name in enumerate(weights, start=1):
            difference = _compare(a, b, name, total)
            if difference is not None:
                found.append(difference)
            if progress is not None:
                progress(number, len(weights))
    found.sort(key=lambda each: float("-inf") if each.relative is None else -each.relative)
    return Differences(
        here=str(here),
        there=str(there),
        formats=(_format(first.quant), _format(second.quant)),
        num_weights=len(weights),
        num_identical=len(weights) - len(found),
        relative=total.relative,
        largest=tuple(found[:limit]),
    )


@dataclass
class _Distance:
    """Sums for a relative distance in the Frobenius norm."""

    difference: float = 0.0
    there: float = 0.0

    def add(self, here: torch.Tensor, there: torch.Tensor) -> None:
        difference, values = (here - there).flatten(), there.flatten()
        self.difference += float(difference.dot(difference))
        self.there += float(values.dot(values))

    def merge(self, other: "_Distance") -> None:
        self.difference += other.difference
        self.there += other.there

    @property
    def relative(self) -> float | None:
        if self.there == 0:
            return 0.0 if self.difference == 0 else None
        return float((self.difference / self.there) ** 0.5)


def _weights(index: CheckpointIndex) -> Iterator[str]:
    """Names of a plain checkpoint's tensors, whatever the format of this one."""
    for tensor in names.checkpoint_tensors(index.config, QuantConfig(Precision.BF16)):
        yield tensor.name


def _format(quant: QuantConfig) -> str:
    return f"{quant.precision}{', experts only' if quant.experts_only else ''}"


def _compare(
    a: CheckpointReader, b: CheckpointReader, name: str, total: _Distance
) -> Difference | None:
    here, there = a.index.find(name), b.index.find(name)
    if here is None or there is None:
        return Difference(name, "only there" if here is None else "only here", None)
    if _shape(a, name) != _shape(b, name):
        what = f"shape {list(_shape(a, name))} here, {list(_shape(b, name))} there"
        return Difference(name, what, None)
    what = f"{here.dtype} here, {there.dtype} there"
    if here.dtype == there.dtype:
        differing = _differing_parts(a, b, name)
        if not differing:
            return None
        what = f"other {', '.join(differing)}"
    distance = _Distance()
    for rows in _row_tiles(_shape(a, name)):
        distance.add(_values(a, name, rows), _values(b, name, rows))
    total.merge(distance)
    return Difference(name, what, distance.relative)


def _shape(reader: CheckpointReader, name: str) -> tuple[int, ...]:
    """The weight's own shape: two E2M1 codes share a byte of a U8 tensor."""
    info = reader.index.require(name)
    is_packed = info.dtype == "U8"
    return (*info.shape[:-1], info.shape[-1] * 2) if is_packed else info.shape


def _row_tiles(shape: tuple[int, ...]) -> Iterator[slice]:
    num_columns = 1
    for size in shape[1:]:
        num_columns *= size
    step = max(_TILE_ELEMENTS // max(num_columns, 1), 1)
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def _parts(reader: CheckpointReader, name: str, rows: slice) -> dict[str, torch.Tensor]:
    """Rows of the weight and of its scale of the same rows, where it has one."""
    parts = {"weight": reader.slice(name, rows)}
    scale = _sibling(name, "weight_scale")
    if reader.index.find(scale) is not None:
        parts["weight_scale"] = reader.slice(scale, rows)
    return parts


def _differing_parts(a: CheckpointReader, b: CheckpointReader, name: str) -> list[str]:
    differing = set()
    for rows in _row_tiles(_shape(a, name)):
        here, there = _parts(a, name, rows), _parts(b, name, rows)
        differing |= {part for part in here if not _same(here[part], there[part])}
    for part in ("weight_scale_2", "input_scale"):
        sibling = _sibling(name, part)
        if a.index.find(sibling) is None or b.index.find(sibling) is None:
            continue
        if not _same(a.tensor(sibling), b.tensor(sibling)):
            differing.add(part)
    return sorted(differing)


def _values(reader: CheckpointReader, name: str, rows: slice) -> torch.Tensor:
    """F32 values of some rows."""
    parts = _parts(reader, name, rows)
    weight = parts["weight"]
    if weight.dtype == torch.uint8:
        scale_2 = reader.tensor(_sibling(name, "weight_scale_2"))
        return Nvfp4Matrix(weight, parts["weight_scale"], scale_2).dequantize()
    if weight.dtype == torch.float8_e4m3fn:
        return Fp8Matrix(weight, parts["weight_scale"]).dequantize()
    return weight.float()


def _sibling(name: str, part: str) -> str:
    return f"{name.removesuffix('.weight')}.{part}"


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype:
        # FP8 scales are F32 in ours and BF16 in others' checkpoints.
        return bool(torch.equal(a.float(), b.float()))
    return bool(torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)))
