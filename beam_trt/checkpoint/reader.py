"""Tensor values of a checkpoint, one tensor at a time.

Reads into fresh memory instead of mapping files, so that a file that shrinks is an error and not a
crash, and resident memory is the tensors held and nothing else.
"""

import os
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import torch

from beam_trt.checkpoint.header import TensorInfo, read_at
from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.errors import CheckpointError

TORCH_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""safetensors dtype names as torch dtypes."""


class CheckpointReader:
    """Reads tensors of `index`. Holds one open file per shard it has touched; close it, or use it
    as a context manager. Peak memory: the tensor asked for."""

    def __init__(self, index: CheckpointIndex) -> None:
        self.index = index
        self._files: dict[Path, int] = {}

    def __enter__(self) -> "CheckpointReader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor in its stored dtype and shape; per-expert names of packed experts work too.

        Raises CheckpointError when there is none, or its file cannot be read to the end.
        """
        return self._read(self.index.require(name))

    def slice(
        self, name: str, rows: slice | None = None, columns: slice | None = None
    ) -> torch.Tensor:
        """Rows and columns of a matrix, or entries of a vector as `rows`, in the stored dtype.

        `slice(start, stop)` as in Python, step 1. Rows are read alone; columns are cut from the
        rows read, which is the peak.
        """
        info = self.index.require(name)
        if rows is not None:
            start, stop, step = rows.indices(info.shape[0])
            assert step == 1, f"{name}: {rows=}"
            row_bytes = info.nbytes // max(info.shape[0], 1)
            count = max(stop - start, 0)
            info = replace(
                info,
                shape=(count, *info.shape[1:]),
                offset=info.offset + start * row_bytes,
                nbytes=count * row_bytes,
            )
        tensor = self._read(info)
        return tensor if columns is None else tensor[:, columns].contiguous()

    def _read(self, info: TensorInfo) -> torch.Tensor:
        data = torch.empty(info.nbytes, dtype=torch.uint8)
        try:
            read_at(self._open(info.file), memoryview(data.numpy()), info.offset)
        except (OSError, EOFError) as error:
            raise CheckpointError(
                f"{info.file}: cannot read {info.name}: {error}. "
                "Check that the file is whole and readable, or fetch it again."
            ) from error
        return data.view(TORCH_DTYPES[info.dtype]).reshape(info.shape)

    def _open(self, path: Path) -> int:
        if path not in self._files:
            self._files[path] = os.open(path, os.O_RDONLY)
        return self._files[path]
