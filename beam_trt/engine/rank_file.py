"""One rank's `rank{N}.safetensors`, written front to back and hashed on the way.

Nothing is read back: an engine as large as the disk's free space costs one write.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from beam_trt.checkpoint.header import layout
from beam_trt.checkpoint.reader import TORCH_DTYPES
from beam_trt.config.tensors import TensorSpec


class RankFileWriter:
    """Takes pieces of the tensors of `specs` in that order, which must be the layout's (see
    `engine.shard.file_order`). Peak memory: the piece being written. OSError passes through."""

    def __init__(self, path: Path, specs: Sequence[TensorSpec]) -> None:
        header, places = layout(specs)
        assert sorted(places, key=lambda name: places[name]) == [spec.name for spec in specs]
        self.path = path
        self._specs = list(specs)
        self._next = 0
        self._filled = 0
        self._digest = hashlib.sha256()
        self._file = path.open("wb", buffering=0)
        self._header = header

    def write(self, name: str, piece: torch.Tensor) -> None:
        """Append the next bytes of tensor `name`; the header goes before the first ones."""
        if self._header:
            self._put(memoryview(self._header))
            self._header = b""
        while self._next < len(self._specs) and self._filled == self._specs[self._next].num_bytes:
            self._next, self._filled = self._next + 1, 0
        assert self._next < len(self._specs), f"{self.path}: {name} after the last tensor"
        spec = self._specs[self._next]
        assert spec.name == name, f"{self.path}: expected {spec.name}, got {name}"
        assert piece.dtype == TORCH_DTYPES[spec.dtype], f"{spec} but {piece.dtype}"
        data = memoryview(piece.contiguous().reshape(-1).view(torch.uint8).numpy())
        self._filled += len(data)
        assert self._filled <= spec.num_bytes, f"{spec}: {self._filled} bytes"
        self._put(data)

    def close(self) -> str:
        """Flush to disk and close; sha256 of the file in hex. Every tensor must be complete."""
        try:
            left = [spec.name for spec in self._specs[self._next + 1 :] if spec.num_bytes]
            assert not left, f"{self.path}: never written: {left[:5]}"
            last = self._specs[self._next]
            assert self._filled == last.num_bytes, f"{last}: {self._filled} bytes"
            os.fsync(self._file.fileno())
        finally:
            self._file.close()
        return self._digest.hexdigest()

    def abandon(self) -> None:
        """Close without asking for completeness, for a folder that will be removed."""
        self._file.close()

    def _put(self, data: memoryview) -> None:
        self._digest.update(data)
        while len(data):
            count = self._file.write(data)
            data = data[count:]
