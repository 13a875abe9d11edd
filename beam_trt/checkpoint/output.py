"""Output folders that are either complete or absent.

A folder is written under the hidden name `.NAME.partial` beside its place and renamed when it is
complete. Knows nothing about what is in it.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from beam_trt.errors import OutputError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_RESULT, _PUBLISHING = "result", "publishing"


def prepare_output(path: Path) -> Path:
    """Check that `path` can become an output folder, and return it resolved.

    Raises OutputError when it is a file, or a folder that already holds something. Writes nothing.
    """
    path = path.resolve()
    if path.exists() and not path.is_dir():
        raise OutputError(f"{path}: expected a folder or nothing, found a file. Give another path.")
    try:
        found = _entries(path) if path.is_dir() and not _is_half_published(path) else []
    except OSError as error:
        raise output_error(path, error) from error
    if found:
        raise OutputError(
            f"{path}: expected an empty or new folder, found {len(found)} entries "
            f"({', '.join(found[:3])}{', ...' if len(found) > 3 else ''}). Nothing was touched: "
            "give another folder or empty this one."
        )
    return path


@contextmanager
def atomic_output(path: Path) -> Iterator[Path]:
    """Yield a fresh folder; move it to `path` when the block ends, remove it when it raises.

    A folder left behind by a killed run is recognised by its name and emptied; one that a living
    process still writes is refused (it holds a lock on the folder). An OSError of the block that
    concerns the output (disk full, no permission) becomes OutputError.
    """
    path = prepare_output(path)
    partial = partial_folder(path)
    try:
        partial.mkdir(parents=True, exist_ok=True)
        lock = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise output_error(path, error) from error
    try:
        _own(partial, lock)
        try:
            yield partial
            os.fsync(lock)
            _publish(partial, path)
        except BaseException as error:
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, OSError) and _is_ours(error, partial):
                raise output_error(path, error) from error
            raise
    finally:
        os.close(lock)


@dataclass
class ResumableFolder:
    """The hidden folder of a run that can be continued. `work` survives a failed run; `result`
    inside it becomes the output. `kept` is for error messages: what a rerun will find."""

    work: Path
    result: Path
    kept: str = ""


@contextmanager
def resumable_output(path: Path) -> Iterator[ResumableFolder]:
    """Like `atomic_output`, but an error or a kill leaves the hidden folder as it is, and the next
    run of the block finds it again. The block removes what is not worth keeping; an empty folder
    is removed here.
    """
    path = prepare_output(path)
    work = partial_folder(path)
    folder = ResumableFolder(work, work / _RESULT)
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise output_error(path, error) from error
    try:
        _lock(work, lock)
        try:
            if _is_half_published(path):
                _take_back(path)
            if not folder.result.is_dir():
                # New, or killed after the result had moved to its place: nothing to continue.
                _clear(work)
                folder.result.mkdir()
            yield folder
            _sync(folder.result)
            if os.path.ismount(path):
                (work / _PUBLISHING).touch()
            _publish(folder.result, path)
            shutil.rmtree(work)
        except BaseException as error:
            _remove_if_empty(folder)
            if isinstance(error, OSError) and _is_ours(error, work):
                raise output_error(path, error, folder.kept) from error
            raise
    finally:
        os.close(lock)


def output_error(path: Path, error: OSError, kept: str = "") -> OutputError:
    """The OutputError that tells a user what an OSError under `path` means and what to do; `kept`
    says what of the work survives."""
    if error.errno in _FULL:
        place = next(p for p in (path, *path.parents) if p.exists())
        free = shutil.disk_usage(place).free
        if kept:
            return OutputError(f"{path}: the disk is full ({free / 1e9:.1f} GB free). {kept}")
        return OutputError(
            f"{path}: the disk is full ({free / 1e9:.1f} GB free): nothing half-written was left. "
            "Free some space or give an output folder on another disk."
        )
    if kept:
        return OutputError(
            f"{path}: cannot be written: {error.strerror}. Check the folder's permissions. {kept}"
        )
    return OutputError(
        f"{path}: cannot be written: {error.strerror}. Nothing half-written was left. "
        "Check the folder's permissions or give another one."
    )


def partial_folder(path: Path) -> Path:
    """The hidden folder in which the output folder `path` is written."""
    path = path.resolve()
    # A mount point (a container's volume) cannot be renamed onto: write inside it instead.
    return path / ".partial" if os.path.ismount(path) else path.with_name(f".{path.name}.partial")


def _entries(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if p.name not in (".partial", "lost+found"))


def _own(partial: Path, lock: int) -> None:
    _lock(partial, lock)
    _clear(partial)


def _clear(folder: Path) -> None:
    for stale in folder.iterdir():
        shutil.rmtree(stale) if stale.is_dir() and not stale.is_symlink() else stale.unlink()


def _lock(partial: Path, lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OutputError(
            f"{partial}: another process is writing here. Wait for it, or give another output "
            "folder."
        ) from None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_if_empty(folder: ResumableFolder) -> None:
    for path in (folder.result, folder.work):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _publish(partial: Path, path: Path) -> None:
    if path not in partial.parents:
        partial.rename(path)
        return
    # Without config.json a folder is neither a checkpoint nor an engine, so it moves last.
    for entry in sorted(partial.iterdir(), key=lambda p: p.name == "config.json"):
        entry.rename(path / entry.name)
    partial.rmdir()


def _is_half_published(path: Path) -> bool:
    """Whether a killed run was moving its result, file by file, into the mount point `path`."""
    work = partial_folder(path)
    return work.parent == path and (work / _PUBLISHING).exists() and (work / _RESULT).is_dir()


def _take_back(path: Path) -> None:
    work = partial_folder(path)
    for name in _entries(path):
        (path / name).rename(work / _RESULT / name)
    (work / _PUBLISHING).unlink()


def _is_ours(error: OSError, partial: Path) -> bool:
    if error.errno in (*_FULL, errno.EROFS, errno.EFBIG):
        return True
    names = (error.filename, error.filename2)
    return any(
        isinstance(name, str | os.PathLike) and partial in Path(name).parents for name in names
    )
