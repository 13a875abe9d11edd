"""Which checkpoint something was built from, cheaply enough to ask on every run."""

import hashlib
from pathlib import Path
from typing import Any

from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.errors import CheckpointError

_SAMPLE_BYTES = 4096


def describe_source(index: CheckpointIndex) -> dict[str, Any]:
    """{name, identity, precision, num_tensors, num_bytes} of a checkpoint.

    `identity` is sha256 over its names, shapes, dtypes and configuration and over samples of every
    shard (4 KiB at its start, middle and end): another training run of the same shape differs, and
    a terabyte is not read.
    """
    digest = hashlib.sha256(index.identity().encode())
    for path in index.files:
        digest.update(_samples(path))
    return {
        "name": index.folder.resolve().name,
        "identity": digest.hexdigest(),
        "precision": str(index.precision),
        "num_tensors": len(index.tensors),
        "num_bytes": index.num_bytes,
    }


def _samples(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            pieces = []
            for offset in (0, size // 2, max(0, size - _SAMPLE_BYTES)):
                file.seek(offset)
                pieces.append(file.read(_SAMPLE_BYTES))
            return b"".join(pieces)
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read: {error.strerror}. Check its permissions."
        ) from error
