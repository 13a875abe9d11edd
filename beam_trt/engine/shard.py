"""A checkpoint's tensors, packed and cut for every rank, in one pass.

Each source tensor is read once and handed out in pieces; nothing is requantized or rounded. Knows
nothing about files of an engine beyond the order in which they are written.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from beam_trt.checkpoint.reader import TORCH_DTYPES, CheckpointReader
from beam_trt.config.mapping import Mapping
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import NVFP4_BLOCK, QuantConfig
from beam_trt.config.tensors import BYTES, TensorSpec, engine_tensors
from beam_trt.engine.layout import ROWS, Group, Part, groups_of
from beam_trt.errors import CheckpointError

_SCALARS = ("weight_scale_2", "input_scale")
_REQUANTIZE = "Quantize the original checkpoint again with `beam-trt quantize`."


@dataclass(frozen=True, slots=True)
class Piece:
    """The next bytes, row-major, of the engine tensor `name` on `rank`."""

    rank: int
    name: str
    tensor: torch.Tensor


def file_order(config: ModelConfig, quant: QuantConfig, mapping: Mapping) -> list[TensorSpec]:
    """One rank's tensors in the order of its file: wider elements first, so that every tensor is
    aligned to its own element size, then by name. The same names on every rank."""
    specs = engine_tensors(config, quant, mapping)
    return sorted(specs, key=lambda spec: (-BYTES[spec.dtype], spec.name))


def iter_pieces(
    reader: CheckpointReader,
    config: ModelConfig,
    quant: QuantConfig,
    mapping: Mapping,
    on_note: Callable[[str], None] | None = None,
) -> Iterator[Piece]:
    """All ranks' tensors: each rank's pieces come in the order of its file, and the pieces of one
    tensor, laid end to end, are its data.

    Peak memory: one source tensor and one rank's cut of it (Beam-501B: 3.1 GB, the embedding), or
    the scalar scales of one layer's experts. Raises CheckpointError for a tensor that is missing,
    has a dtype that would have to be rounded, NVFP4 linears packed together with unequal
    weight_scale_2, and scales that are zero, negative or not finite. Unequal input_scale become
    their maximum, which clips nothing, and `on_note` is told.
    """
    for spec in file_order(config, quant, mapping):
        base, _, kind = spec.name.rpartition(".")
        is_linear = kind in ("weight", "weight_scale", *_SCALARS)
        groups = groups_of(base if is_linear else spec.name, config, mapping)
        for group in groups:
            if kind in _SCALARS:
                yield from _scalar_pieces(reader, spec, kind, group, on_note)
            else:
                for part in group:
                    suffix = f".{kind}" if is_linear else ""
                    yield from _matrix_pieces(reader, spec, suffix, part)


def _matrix_pieces(
    reader: CheckpointReader, spec: TensorSpec, suffix: str, part: Part
) -> Iterator[Piece]:
    name = part.source + suffix
    tensor = _read(reader, name, spec)
    if suffix == ".weight_scale":
        _check_scales(reader, name, tensor)
    # FP8 scales are one a row: cutting columns leaves them whole.
    is_row_scale = suffix == ".weight_scale" and spec.dtype == "F32"
    per_element = _columns_per_element(spec, suffix)
    for rank, held in enumerate(part.ranges):
        if held is None:
            continue
        start, stop = held
        if part.axis == ROWS:
            piece = tensor[start:stop]
        elif is_row_scale:
            piece = tensor
        else:
            assert start % per_element == stop % per_element == 0, f"{name}: {held=}"
            piece = _columns(tensor, start // per_element, stop // per_element)
        yield Piece(rank, spec.name, piece)


def _columns_per_element(spec: TensorSpec, suffix: str) -> int:
    """Columns of the linear that one stored element covers."""
    if suffix == ".weight" and spec.dtype == "U8":
        return 2
    return NVFP4_BLOCK if suffix == ".weight_scale" else 1


def _scalar_pieces(
    reader: CheckpointReader,
    spec: TensorSpec,
    kind: str,
    group: Group,
    on_note: Callable[[str], None] | None,
) -> Iterator[Piece]:
    found = {f"{part.source}.{kind}": 0.0 for part in group}
    for name in found:
        tensor = _read(reader, name, spec)
        _check_scales(reader, name, tensor)
        found[name] = tensor.reshape(()).item()
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{name} = {value:.9g}" for name, value in found.items())
        if kind == "weight_scale_2":
            raise CheckpointError(
                f"{reader.index.folder}: expected one weight_scale_2 for linears that are packed "
                f"into one matrix, found {listed}. {_REQUANTIZE}"
            )
        if on_note:
            on_note(f"{spec.name}: unequal input_scale, the largest is used: {listed}")
    value = torch.tensor([max(found.values())], dtype=torch.float32)
    for rank, held in enumerate(group[0].ranges):
        if held is not None:
            yield Piece(rank, spec.name, value)


def _read(reader: CheckpointReader, name: str, spec: TensorSpec) -> torch.Tensor:
    tensor = reader.tensor(name)
    wanted = TORCH_DTYPES[spec.dtype]
    if tensor.dtype == wanted:
        return tensor
    if (tensor.dtype, wanted) == (torch.bfloat16, torch.float32):
        return tensor.float()  # exact
    raise CheckpointError(
        f"{reader.index.folder}: {name}: expected {spec.dtype}, found {tensor.dtype}, which would "
        "have to be rounded. Convert the checkpoint with `beam-trt quantize` first."
    )


def _columns(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Columns of a matrix in fresh memory. Copied by numpy: torch starts a thread team for every
    one of the many small copies, which costs more than the copy."""
    width = tensor.element_size()
    as_bytes = tensor.view(torch.uint8).numpy()
    cut = np.ascontiguousarray(as_bytes[:, start * width : stop * width])
    return torch.from_numpy(cut).view(tensor.dtype)


def _check_scales(reader: CheckpointReader, name: str, tensor: torch.Tensor) -> None:
    if tensor.dtype == torch.float8_e4m3fn:
        # 0x7F and 0xFF are NaN, above 0x80 is negative. A block of zeros may have a zero scale.
        codes = tensor.view(torch.uint8).numpy()
        wrong = (codes == 0x7F) | (codes > 0x80)
    else:
        values = tensor.numpy()
        wrong = ~np.isfinite(values) | (values <= 0)
    if wrong.any():
        value = tensor[torch.from_numpy(np.asarray(wrong))].reshape(-1)[0].item()
        raise CheckpointError(
            f"{reader.index.folder}: {name}: expected finite scales above zero, found {value}: "
            f"the answer would be NaN. {_REQUANTIZE}"
        )
