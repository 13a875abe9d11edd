"""Safetensors files written one tensor at a time, in any order.

What will be written is known beforehand, so each file's header is written first and every tensor
goes straight to its place. Meant for a folder of `output.atomic_output`.
"""

import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import torch

from beam_trt.checkpoint.header import layout
from beam_trt.checkpoint.index import INDEX_FILE
from beam_trt.checkpoint.reader import TORCH_DTYPES
from beam_trt.config.tensors import TensorSpec

DEFAULT_SHARD_BYTES = 5_000_000_000


class TensorFileWriter:
    """One safetensors file whose tensors are `specs`. Peak memory: the tensor being written.

    OSError (disk full) passes through; `atomic_output` around it turns it into OutputError.
    """

    def __init__(self, path: Path, specs: Iterable[TensorSpec]) -> None:
        self.path = path
        specs = list(specs)
        self._specs = {spec.name: spec for spec in specs}
        assert len(self._specs) == len(specs), f"{path}: a tensor is planned twice"
        header, self._places = layout(specs)
        self._left = set(self._specs)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            _write_at(self._descriptor, memoryview(header), 0)
        except OSError:
            self.abandon()
            raise

    @property
    def is_complete(self) -> bool:
        return not self._left

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Write one tensor; its dtype and shape must be the planned ones, and it must be new."""
        spec = self._specs[name]
        assert name in self._left, f"{name}: written twice"
        found = (tensor.dtype, tuple(tensor.shape))
        assert found == (TORCH_DTYPES[spec.dtype], spec.shape), f"{spec} but {found}"
        offset, nbytes = self._places[name]
        if nbytes:
            flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            _write_at(self._descriptor, memoryview(flat.numpy()), offset)
        self._left.remove(name)

    def close(self) -> None:
        """Flush to disk and close; every planned tensor must have been written."""
        try:
            assert self.is_complete, f"{self.path}: never written: {sorted(self._left)[:5]}"
            os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)

    def abandon(self) -> None:
        """Close without asking for completeness, for a folder that will be removed."""
        os.close(self._descriptor)


class ShardWriter:
    """A checkpoint's shards and index json. `tensors` is the whole plan, in writing order; shards
    fill up to `max_shard_bytes` (a larger tensor gets its own). Peak memory: one tensor.

    Shards that an earlier run finished are named to `reuse` before the first write; `on_shard` is
    called with the path of each shard that is complete and flushed to disk.
    """

    def __init__(
        self,
        folder: Path,
        tensors: Iterable[TensorSpec],
        max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    ) -> None:
        self.folder = folder
        self.on_shard: Callable[[Path], None] | None = None
        shards = plan_shards(tensors, max_shard_bytes)
        self._files = {
            f"model-{number:05d}-of-{len(shards):05d}.safetensors": shard
            for number, shard in enumerate(shards, start=1)
        }
        self._file_of = {spec.name: file for file, shard in self._files.items() for spec in shard}
        self._open: dict[str, TensorFileWriter] = {}
        self._done: set[str] = set()

    @property
    def num_bytes(self) -> int:
        """Bytes of all planned tensors."""
        return sum(spec.num_bytes for shard in self._files.values() for spec in shard)

    @property
    def num_shards(self) -> int:
        return len(self._files)

    def reuse(self, files: Collection[str]) -> None:
        """Take shards already in the folder as written."""
        assert set(files) <= set(self._files), f"{files=}"
        self._done |= set(files)

    def needs(self, name: str) -> bool:
        """Whether the tensor's shard is still to be finished."""
        return self._file_of[name] not in self._done

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Write one planned tensor; a shard is closed with its last one."""
        file = self._file_of[name]
        if file not in self._open:
            assert file not in self._done, f"{name}: written twice"
            self._open[file] = TensorFileWriter(self.folder / file, self._files[file])
        self._open[file].write(name, tensor)
        if self._open[file].is_complete:
            done = self._open.pop(file)
            done.close()
            self._done.add(file)
            if self.on_shard is not None:
                self.on_shard(done.path)

    def commit(self) -> None:
        """Write the index json, last: without it the folder is no checkpoint."""
        missing = set(self._files) - self._done
        assert not missing, f"{self.folder}: incomplete shards {sorted(missing)[:3]}"
        index = {
            "metadata": {"total_size": self.num_bytes},
            "weight_map": dict(sorted(self._file_of.items())),
        }
        text = json.dumps(index, indent=2) + "\n"
        (self.folder / INDEX_FILE).write_text(text, encoding="utf-8")

    def abandon(self) -> None:
        """Close what is open, for a folder that will be removed."""
        for file in self._open.values():
            file.abandon()
        self._open.clear()


def plan_shards(
    tensors: Iterable[TensorSpec], max_shard_bytes: int = DEFAULT_SHARD_BYTES
) -> list[Sequence[TensorSpec]]:
    """Cut a plan, in order, into shards of at most `max_shard_bytes` of tensor data each."""
    shards: list[list[TensorSpec]] = []
    room = 0
    for spec in tensors:
        if not shards or spec.num_bytes > room:
            shards.append([])
            room = max_shard_bytes
        shards[-1].append(spec)
        room = max(room - spec.num_bytes, 0)
    return list(shards)


def _write_at(descriptor: int, data: memoryview, offset: int) -> None:
    while len(data):
        count = os.pwrite(descriptor, data, offset)
        data, offset = data[count:], offset + count
