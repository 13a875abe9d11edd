"""Writing in a thread: the same bytes, bounded memory, and no error lost."""

import errno
import threading
from pathlib import Path

import pytest
import torch

from beam_trt.checkpoint import write_behind
from beam_trt.checkpoint.write_behind import WriteBehind
from beam_trt.checkpoint.writer import ShardWriter
from beam_trt.config.tensors import TensorSpec

SPECS = [TensorSpec(f"t{number}", "F32", (100, number)) for number in range(1, 30)]
TENSORS = {spec.name: torch.full(spec.shape, float(n)) for n, spec in enumerate(SPECS)}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def writer(folder: Path) -> ShardWriter:
    folder.mkdir(exist_ok=True)
    return ShardWriter(folder, SPECS, max_shard_bytes=30_000)


@pytest.mark.parametrize("max_bytes", [0, 5_000, 1 << 28])
def test_bytes_are_the_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int
) -> None:
    monkeypatch.setattr(write_behind, "MAX_WAITING_BYTES", max_bytes)
    plain, behind = writer(tmp_path / "plain"), WriteBehind(writer(tmp_path / "behind"))
    for name, tensor in TENSORS.items():
        plain.write(name, tensor)
        behind.write(name, tensor)
    plain.commit()
    behind.commit()
    behind.abandon()
    assert contents(tmp_path / "plain") == contents(tmp_path / "behind")
    assert not any(thread.name == "write-behind" for thread in threading.enumerate())


def test_waiting_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_behind, "MAX_WAITING_BYTES", 3_000)
    inner = writer(tmp_path / "out")
    behind = WriteBehind(inner)
    gate, largest = threading.Event(), []
    write = inner.write

    def slow(name: str, tensor: torch.Tensor) -> None:
        largest.append(behind._waiting_bytes)
        if len(largest) < 5:
            gate.wait(0.05)
        write(name, tensor)

    monkeypatch.setattr(inner, "write", slow)
    for name, tensor in TENSORS.items():
        behind.write(name, tensor)
    behind.commit()
    # A tensor that is larger than the bound waits alone.
    assert max(largest) <= max(3_000, SPECS[-1].num_bytes)


def test_error_reaches_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = writer(tmp_path / "out")
    behind = WriteBehind(inner)

    def full(name: str, tensor: torch.Tensor) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(inner, "write", full)

    def write_all() -> None:
        for name, tensor in TENSORS.items():
            behind.write(name, tensor)
        behind.commit()

    with pytest.raises(OSError, match="No space left"):
        write_all()
    behind.abandon()
    assert not any(thread.name == "write-behind" for thread in threading.enumerate())


def test_stopped_run_keeps_what_was_given(tmp_path: Path) -> None:
    finished: list[str] = []
    inner = writer(tmp_path / "out")
    inner.on_shard = lambda path: finished.append(path.name)
    behind = WriteBehind(inner)
    for name in list(TENSORS)[:12]:
        behind.write(name, TENSORS[name])
    behind.abandon()
    # 100 rows of 1 + ... + 12 floats are 31,200 bytes: the first shard was full before the last.
    assert finished == ["model-00001-of-00007.safetensors"]
