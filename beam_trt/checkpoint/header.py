"""The header of one safetensors file: read with every check, and laid out for writing.

Needs no torch and never reads tensor data. Format: 8 bytes little-endian header length, that many
bytes of JSON `{name: {dtype, shape, data_offsets}}`, then the data without holes.
"""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beam_trt.config.tensors import TensorSpec
from beam_trt.errors import CheckpointError

ITEM_BYTES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "BF16": 2,
    "F16": 2,
    "I16": 2,
    "U16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
"""Bytes of one element of each safetensors dtype a checkpoint may hold."""

MAX_HEADER_BYTES = 100_000_000
"""The safetensors library refuses longer headers, so a longer one is damage."""

_PREFIX = 8
_REFETCH = "The file is damaged or incomplete: fetch it again."


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies: `nbytes` row-major bytes at `offset` from the start of `file`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int


def read_header(path: Path) -> list[TensorInfo]:
    """The tensors of one file in data order.

    Raises CheckpointError for a file that is missing, unreadable, cut, too long, or whose header
    lies: not JSON, a name twice, an unknown dtype, a shape that disagrees with its bytes, overlaps
    or holes.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(_PREFIX), "little")
            if size < _PREFIX or header_bytes > min(size - _PREFIX, MAX_HEADER_BYTES):
                raise CheckpointError(
                    f"{path}: truncated or no safetensors file: expected a header of "
                    f"{header_bytes} bytes, found a file of {size}. {_REFETCH}"
                )
            raw = file.read(header_bytes)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read: {error.strerror}. Check that the file exists and that this "
            "user may read it."
        ) from error
    infos = _parse(path, raw, data_start=_PREFIX + header_bytes)
    _check_layout(path, infos, _PREFIX + header_bytes, size)
    return infos


def layout(tensors: Iterable[TensorSpec]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Header bytes of a new file, and per tensor its absolute (offset, nbytes).

    Wider dtypes come first, as the safetensors library orders them, so that every tensor is aligned
    to its element size; the header is padded with spaces to 8 bytes for the same reason.
    """
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    relative: dict[str, tuple[int, int]] = {}
    end = 0
    for spec in sorted(tensors, key=lambda spec: (-ITEM_BYTES[spec.dtype], spec.name)):
        begin, end = end, end + spec.num_bytes
        entries[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [begin, end],
        }
        relative[spec.name] = (begin, end - begin)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = _PREFIX + len(text)
    header = len(text).to_bytes(_PREFIX, "little") + text
    return header, {name: (start + begin, size) for name, (begin, size) in relative.items()}


def _parse(path: Path, raw: bytes, data_start: int) -> list[TensorInfo]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(f"{path}: its header names {twice!r} twice. {_REFETCH}")
        return found

    try:
        header = json.loads(raw, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: expected a JSON header, found something else ({error}). {_REFETCH}"
        ) from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: its header is no JSON object. {_REFETCH}")
    header.pop("__metadata__", None)
    infos = [_entry(path, name, entry, data_start) for name, entry in header.items()]
    return sorted(infos, key=lambda info: (info.offset, info.nbytes))


def _entry(path: Path, name: str, entry: Any, data_start: int) -> TensorInfo:
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype: Any = fields.get("dtype")
    shape: Any = fields.get("shape")
    offsets: Any = fields.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise CheckpointError(
            f"{path}: {name}: expected a known dtype, found {dtype!r}. {_REFETCH}"
        )
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise CheckpointError(
            f"{path}: {name}: expected a shape and two data offsets, found shape {shape!r} and "
            f"offsets {offsets!r}. {_REFETCH}"
        )
    nbytes = math.prod(shape) * ITEM_BYTES[dtype]
    if offsets[1] - offsets[0] != nbytes:
        raise CheckpointError(
            f"{path}: {name}: its header lies: {dtype} {list(shape)} takes {nbytes} bytes, its "
            f"offsets hold {offsets[1] - offsets[0]}. {_REFETCH}"
        )
    return TensorInfo(name, dtype, tuple(shape), path, data_start + offsets[0], nbytes)


def _counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and v >= 0 for v in value)


def _check_layout(path: Path, infos: list[TensorInfo], data_start: int, size: int) -> None:
    end = data_start
    for info in infos:
        if info.offset != end:
            what = "overlaps the tensor before it" if info.offset < end else "leaves a hole"
            raise CheckpointError(
                f"{path}: {info.name}: expected at byte {end}, found at {info.offset}: it {what}. "
                f"{_REFETCH}"
            )
        end += info.nbytes
    if end != size:
        what = "truncated" if size < end else "too long"
        raise CheckpointError(
            f"{path}: {what}: its header needs {end} bytes, the file has {size}. {_REFETCH}"
        )


def read_at(descriptor: int, buffer: memoryview, offset: int) -> None:
    """Fill `buffer` from byte `offset`; EOFError when the file ends first."""
    done = 0
    while done < len(buffer):
        count = os.preadv(descriptor, [buffer[done:]], offset + done)
        if count == 0:
            raise EOFError(f"ends {len(buffer) - done} bytes too early")
        done += count
