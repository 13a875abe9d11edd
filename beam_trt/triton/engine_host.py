"""The engine host behind the Triton models: one process, started and watched by the streaming
model, reached by both models through a unix socket in a private folder.

Knows processes and sockets, nothing about requests.
"""

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from beam_trt.errors import ServerError
from beam_trt.runtime.host_client import EngineClient

RUN_DIR_VARIABLE = "BEAM_TRT_RUN_DIR"
"""Folder for the socket, set by `beam-trt serve`; elsewhere one is derived from Triton's pid."""
PYTHON_VARIABLE = "BEAM_TRT_PYTHON"
"""Interpreter that runs the engine host; elsewhere the first python3 in PATH, as for the stub."""

ENGINE_SOCKET = "engine.sock"
"""Name of the socket in the run folder."""

_PROBLEM = "engine.problem"
_LOG_LINES = 30
_POLL_S = 0.2
_STOP_TIMEOUT_S = 5.0
_MAX_QUICK_DEATHS = 3
_QUICK_S = 60.0
_WAIT_FOR_LINK_S = 15.0

Log = Callable[[str], None]


def run_folder() -> Path:
    """The folder both models meet in: private to this user and to this tritonserver. Raises
    ServerError when somebody else owns the name."""
    given = os.environ.get(RUN_DIR_VARIABLE)
    # Both stubs are children of the one tritonserver, so they derive the same name.
    default = Path(tempfile.gettempdir()) / f"beam-trt-{os.getuid()}-{os.getppid()}"
    path = Path(given) if given else default
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ServerError(
            f"{path}: expected a folder that only this user can enter, found owner {found.st_uid} "
            f"and mode {stat.filemode(found.st_mode)}. Remove it, or set {RUN_DIR_VARIABLE}."
        )
    return path


class EngineProcess:
    """`python -m beam_trt.runtime.host` on one engine. Its output goes to this process's stderr,
    which is Triton's log; the last lines are kept for error messages."""

    def __init__(self, engine_dir: Path, socket_path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            socket_path.unlink()  # left by a host that was killed
        python = os.environ.get(PYTHON_VARIABLE) or shutil.which("python3") or sys.executable
        command = [python, "-m", "beam_trt.runtime.host", str(engine_dir)]
        self._tail: deque[str] = deque(maxlen=_LOG_LINES)
        self._process = subprocess.Popen(
            [*command, "--socket", str(socket_path), "--die-with-parent"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._copier = threading.Thread(target=self._copy_output, name="host-log", daemon=True)
        self._copier.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_message(self) -> str | None:
        """How it ended, with its last lines; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        self._copier.join(1.0)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        said = "\n".join(self._tail)
        if len(self._tail) == 1:
            return f"the engine host ended with {how}: {said}"
        return f"the engine host ended with {how}" + (f"; its last lines:\n{said}" if said else "")

    def stop(self) -> None:
        """End it: asked first, killed after a few seconds."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._copier.join(1.0)

    def _copy_output(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._tail.append(line.rstrip("\n"))
                sys.stderr.write(line)
                sys.stderr.flush()


class _Client(EngineClient):
    """One whose end can be seen without asking the host."""

    @property
    def is_gone(self) -> bool:
        return self._gone is not None


class EngineLink:
    """A connection to the engine host that comes back by itself. With `engine_dir` it also starts
    the host and restarts it when it dies; without, it waits for the one that the other model
    starts. Requests open when the host dies get an error from EngineClient; later ones wait for
    the new host for a bounded time."""

    def __init__(self, folder: Path, engine_dir: Path | None, log: Log) -> None:
        self._socket = folder / ENGINE_SOCKET
        self._problem_file = folder / _PROBLEM  # how the twin learns why no host comes
        self._engine_dir = engine_dir
        self._log = log
        self._changed = threading.Condition()
        self._client: _Client | None = None
        self._problem: str | None = None
        self._closing = threading.Event()
        self._process: EngineProcess | None = None
        self._deaths: deque[float] = deque(maxlen=_MAX_QUICK_DEATHS)
        if engine_dir is not None:
            self._problem_file.unlink(missing_ok=True)
            self._process = EngineProcess(engine_dir, self._socket)
            try:
                self._set(self._connect())
            except ServerError:
                self._process.stop()
                raise
        self._watcher = threading.Thread(target=self._watch, name="engine-link", daemon=True)
        self._watcher.start()

    def client(self) -> EngineClient:
        """The living connection. Raises ServerError when there is none within some seconds, or at
        once when the host cannot be brought back."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._client or self._problem or self._closing.is_set(), _WAIT_FOR_LINK_S
            )
            if self._client is not None:
                return self._client
            raise ServerError(
                self._problem
                or "the engine host is not running yet, or is being restarted. Try again later."
            )

    def lost(self, client: EngineClient) -> None:
        """Say that a connection no longer works, so that nobody gets it again."""
        with self._changed:
            if self._client is client:
                self._client = None

    def close(self) -> None:
        """Disconnect, which cancels open requests, and stop the host if this link started it."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._watcher.join()
        if self._client is not None:
            self._client.close()
        if self._process is not None:
            self._process.stop()

    def _watch(self) -> None:
        while not self._closing.wait(_POLL_S):
            if self._client is not None and not self._client.is_gone:
                continue
            if self._client is not None:
                self._set(None)
            try:
                self._revive()
            except ServerError as error:
                if self._process is not None:  # the other model only waits, and says nothing
                    self._log(str(error))

    def _revive(self) -> None:
        if self._engine_dir is None:
            if self._problem_file.exists():
                self._give_up(self._problem_file.read_text(encoding="utf-8"))
            else:
                self._give_up(None)
                self._set(_Client(self._socket))
        elif self._problem is None:
            self._restart(self._engine_dir)

    def _restart(self, engine_dir: Path) -> None:
        assert self._process is not None
        message = self._process.exit_message()
        if message is not None:
            now = time.monotonic()
            self._deaths.append(now)
            if len(self._deaths) == _MAX_QUICK_DEATHS and now - self._deaths[0] < _QUICK_S:
                problem = (
                    f"{message}\nIt died {_MAX_QUICK_DEATHS} times within {_QUICK_S:.0f} s and "
                    "is not started again. Correct the cause, then restart the server."
                )
                self._problem_file.write_text(problem, encoding="utf-8")
                self._give_up(problem)
                raise ServerError(problem)
            self._log(f"{message}\nStarting it again.")
            self._process = EngineProcess(engine_dir, self._socket)
        self._set(self._connect())

    def _give_up(self, problem: str | None) -> None:
        with self._changed:
            self._problem = problem
            self._changed.notify_all()

    def _connect(self) -> "_Client":
        """Wait, as long as loading takes, until the host that we started answers."""
        assert self._process is not None
        while True:
            message = self._process.exit_message()
            if message is not None or self._closing.is_set():
                raise ServerError(message or "the server is stopping.")
            try:
                return _Client(self._socket, connect_timeout_s=_POLL_S)
            except ServerError:
                continue

    def _set(self, client: "_Client | None") -> None:
        with self._changed:
            old, self._client = self._client, client
            self._changed.notify_all()
        if old is not None:
            old.close()
