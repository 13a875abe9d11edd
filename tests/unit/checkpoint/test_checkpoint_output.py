"""An output folder is complete or absent, whatever happens to the one who writes it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from beam_trt.checkpoint.output import atomic_output, prepare_output
from beam_trt.errors import OutputError

WRITER = """
import sys, time
from pathlib import Path
from beam_trt.checkpoint.output import atomic_output
with atomic_output(Path(sys.argv[1])) as folder:
    (folder / "config.json").write_text("{}")
    print("writing", flush=True)
    sys.stdin.read()
"""


def start_writer(path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WRITER, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    return process


def finish(process: subprocess.Popen[bytes]) -> int:
    process.communicate()
    return process.returncode


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted tmpfs of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_folder_appears_complete(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with atomic_output(out) as folder:
        (folder / "a").write_text("1")
        assert not out.exists()
    assert (out / "a").read_text() == "1"
    assert list(out.parent.iterdir()) == [out]


def test_empty_folder_is_used(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with atomic_output(out) as folder:
        (folder / "a").write_text("1")
    assert (out / "a").exists()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_after_an_error(tmp_path: Path, error: type[BaseException]) -> None:
    def write() -> None:
        with atomic_output(tmp_path / "out") as folder:
            (folder / "a").write_text("1")
            raise error

    with pytest.raises(error):
        write()
    assert list(tmp_path.iterdir()) == []


def test_folder_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(OutputError) as caught, atomic_output(tmp_path):
        pass
    text = str(caught.value)
    assert f"{tmp_path}: expected an empty or new folder, found 1 entries (mine.txt)" in text
    assert "Nothing was touched" in text
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_output_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("x")
    with pytest.raises(OutputError, match="expected a folder or nothing, found a file"):
        prepare_output(path)


def test_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(OutputError, match="cannot be written: Not a directory"),
        atomic_output(tmp_path / "file" / "out"),
    ):
        pass


def test_killed_writer_leaves_no_folder_and_the_next_run_works(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start_writer(out)
    process.send_signal(signal.SIGKILL)
    assert finish(process) == -signal.SIGKILL
    assert not out.exists()
    stale = [path.name for path in tmp_path.iterdir()]
    assert stale == [".out.partial"]
    with atomic_output(out) as folder:
        assert list(folder.iterdir()) == []
        (folder / "a").write_text("1")
    assert [path.name for path in out.iterdir()] == ["a"]
    assert list(tmp_path.iterdir()) == [out]


def test_living_writer_is_not_disturbed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start_writer(out)
    with (
        pytest.raises(OutputError, match="another process is writing here"),
        atomic_output(out),
    ):
        pass
    assert finish(process) == 0
    assert (out / "config.json").exists()


def test_full_disk(small_disk: Path) -> None:
    with pytest.raises(OutputError) as caught, atomic_output(small_disk / "out") as folder:
        (folder / "a").write_bytes(b"x" * 2_000_000)
    text = str(caught.value)
    assert "the disk is full" in text
    assert "nothing half-written was left" in text
    assert "another disk" in text
    assert list(small_disk.iterdir()) == []


def test_mount_point_as_output(small_disk: Path) -> None:
    """A container's volume cannot be renamed onto."""
    with atomic_output(small_disk) as folder:
        (folder / "config.json").write_text("{}")
        (folder / "a").write_text("1")
    assert sorted(path.name for path in small_disk.iterdir()) == ["a", "config.json"]


def test_source_errors_stay_what_they_are(tmp_path: Path) -> None:
    """Only trouble with the output becomes an OutputError."""
    with pytest.raises(FileNotFoundError), atomic_output(tmp_path / "out"):
        (tmp_path / "source.txt").read_text()
