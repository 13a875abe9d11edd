"""What a killed launcher left is removed; what any living process still needs is not."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from beam_trt.triton import leftovers


@pytest.fixture
def dead_pid() -> int:
    """The pid of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("shm", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(leftovers, "SHM", tmp_path / "shm")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


def make(pid: int) -> list[Path]:
    entry = leftovers.SHM / f"{leftovers.shm_prefix(pid, 'ab12')}region"
    entry.write_bytes(b"x")
    run_dir = leftovers.make_run_dir(pid)
    (run_dir / "backends").mkdir()
    return [entry, run_dir]


def test_what_a_dead_launcher_left_is_removed(dead_pid: int) -> None:
    left = make(dead_pid)
    assert sorted(leftovers.remove_leftovers()) == sorted(left)
    assert not any(path.exists() for path in left)


def test_what_is_in_use_stays(dead_pid: int) -> None:
    mine = make(os.getpid())
    drained = make(dead_pid)
    argument = leftovers.shm_prefix(dead_pid, "ab12") + str(drained[1])
    server = subprocess.Popen([sys.executable, "-c", "input()", argument], stdin=subprocess.PIPE)
    try:
        assert leftovers.remove_leftovers() == []
    finally:
        server.communicate(b"\n")
    assert all(path.exists() for path in (*mine, *drained))


def test_other_names_stay() -> None:
    for folder, name in ((leftovers.SHM, "beam_trt_notes"), (Path(tempfile.gettempdir()), "beam")):
        (folder / name).mkdir()
    assert leftovers.remove_leftovers() == []
