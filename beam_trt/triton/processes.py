"""The processes of one session (a tritonserver and all it started), through Linux's /proc."""

import contextlib
import ctypes
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process: `state` is the kernel's letter, Z for one that is dead but not collected."""

    pid: int
    parent: int
    session: int
    state: str
    command: tuple[str, ...]

    @property
    def is_alive(self) -> bool:
        return self.state not in "ZX"


def all_processes() -> list[ProcessInfo]:
    """Processes of this machine, dead ones that nobody collected included."""
    found = (_read(int(entry.name)) for entry in Path("/proc").glob("[0-9]*"))
    return [info for info in found if info is not None]


def session_members(session: int) -> list[ProcessInfo]:
    """Those of one session."""
    return [info for info in all_processes() if info.session == session]


def kill_session(session: int, timeout_s: float = 5.0) -> list[int]:
    """SIGKILL every living process of a session until none is left, or the time is over. Returns
    the pids that were killed."""
    killed: set[int] = set()
    deadline = time.monotonic() + timeout_s
    while living := [info for info in session_members(session) if info.is_alive]:
        for info in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(info.pid, signal.SIGKILL)
            killed.add(info.pid)
        if time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    return sorted(killed)


def die_with_parent() -> None:
    """In a child between fork and exec: ask the kernel for a SIGTERM when the parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _read(pid: int) -> ProcessInfo | None:
    try:
        # The name in parentheses may hold anything, so fields are counted after the last one.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:  # it ended meanwhile
        return None
    state, parent, session = fields[0], int(fields[1]), int(fields[3])
    return ProcessInfo(pid, parent, session, state, tuple(command.rstrip("\0").split("\0")))
