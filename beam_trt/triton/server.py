"""Starts the real tritonserver on a model repository, watches it, and stops it without a trace.

Whatever happens, after `stop` no process it started lives, its ports are free, and its shared
memory and run folder are gone. Knows nothing about requests.
"""

import http.client
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from beam_trt.errors import ServerError
from beam_trt.runtime.host_client import EngineClient
from beam_trt.triton.engine_host import ENGINE_SOCKET, PYTHON_VARIABLE, RUN_DIR_VARIABLE
from beam_trt.triton.installation import Installation
from beam_trt.triton.leftovers import SHM, make_run_dir, remove_leftovers, shm_prefix
from beam_trt.triton.ports import check_port_free
from beam_trt.triton.processes import die_with_parent, kill_session, session_members
from beam_trt.triton.repository import MODELS

_LOG_LINES = 200
_TAIL_LINES = 25
_POLL_S = 0.1
_KILL_MARGIN_S = 3.0
_IDLE_GRACE_S = 5.0
_WATCH_S = 0.5
_RESTRICTED = "model-repository,shared-memory,trace,logging"
_ADMIN_HEADER = "beam-trt-admin"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How tritonserver is started. `host` is the address it listens on; ports must differ and be
    free. exit_timeout_s: how long open requests may go on after `stop`."""

    repository: Path
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    host: str = "127.0.0.1"
    exit_timeout_s: int = 30
    ready_timeout_s: float = 1800.0

    def __post_init__(self) -> None:
        ports = {
            "--http-port": self.http_port,
            "--grpc-port": self.grpc_port,
            "--metrics-port": self.metrics_port,
        }
        for flag, port in ports.items():
            if not 1 <= port <= 65535:
                raise ServerError(f"{flag}: expected a port within 1..65535, got {port}.")
        if len(set(ports.values())) != len(ports):
            raise ServerError(
                f"ports: {', '.join(f'{flag} {port}' for flag, port in ports.items())}: "
                "expected three different ones."
            )
        if self.exit_timeout_s < 0:
            raise ServerError(
                f"--exit-timeout: expected at least 0 seconds, got {self.exit_timeout_s}."
            )


def find_repository(folder: Path) -> Path:
    """The model repository that `folder` is, or holds as `triton_repo`. Raises ServerError."""
    for candidate in (folder / "triton_repo", folder):
        if all((candidate / model / "config.pbtxt").is_file() for model in MODELS):
            return candidate.resolve()
    raise ServerError(
        f"{folder}: expected a build (with triton_repo/) or a Triton model repository with the "
        f"models {' and '.join(MODELS)}, found {'neither' if folder.is_dir() else 'no such folder'}"
        ". Write one: beam-trt build, or beam-trt repo ENGINE -o DIR."
    )


class TritonServer:
    """One running tritonserver with its stubs and engine host. Use as a context manager, or call
    `start`, `wait_ready`, and always `stop`. `on_log` gets every line of the server's log.

    Start it from the main thread: the kernel ends the server when the starting thread ends.
    """

    def __init__(self, options: ServerOptions, on_log: Callable[[str], None] | None = None) -> None:
        self.options = options
        self._on_log = on_log
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._process: subprocess.Popen[str] | None = None
        self._run_dir: Path | None = None
        self._reader: threading.Thread | None = None
        self._stopping = False
        self._hurry = False
        self._admin_key = secrets.token_hex(16)
        self._shm_prefix = shm_prefix(os.getpid(), secrets.token_hex(4))

    def __enter__(self) -> "TritonServer":
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def http_url(self) -> str:
        return f"http://{_client_host(self.options.host)}:{self.options.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"grpc://{_client_host(self.options.host)}:{self.options.grpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{_client_host(self.options.host)}:{self.options.metrics_port}/metrics"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def engine_socket(self) -> Path:
        """Where the engine host of this server can be asked for its stats while it runs."""
        assert self._run_dir is not None
        return self._run_dir / ENGINE_SOCKET

    @property
    def shm_prefix(self) -> str:
        """Beginning of the names of all its entries in /dev/shm."""
        return self._shm_prefix

    def start(self) -> None:
        """Launch the server; it is not ready yet. Raises ServerError where a port is taken or
        tritonserver or libpython are missing."""
        assert self._process is None, "started twice"
        installation = Installation.find()
        options = self.options
        for flag, port in (
            ("--http-port", options.http_port),
            ("--grpc-port", options.grpc_port),
            ("--metrics-port", options.metrics_port),
        ):
            check_port_free(options.host, port, flag)
        remove_leftovers()
        self._run_dir = make_run_dir(os.getpid())
        backends = installation.lay_out_backends(self._run_dir)
        environment = {PYTHON_VARIABLE: sys.executable} | installation.environment()
        environment[RUN_DIR_VARIABLE] = str(self._run_dir)
        self._process = subprocess.Popen(
            [str(installation.server), *self._arguments(backends)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches us alone, and all it starts can be found
            preexec_fn=die_with_parent,
        )
        self._reader = threading.Thread(target=self._read_log, name="triton-log", daemon=True)
        self._reader.start()

    def wait_ready(self) -> None:
        """Return when both models are loaded and the server answers. Raises ServerError with the
        end of the server's log where it ends before or takes too long."""
        deadline = time.monotonic() + self.options.ready_timeout_s
        while not self._is_ready():
            self.check_alive()
            if time.monotonic() >= deadline:
                raise ServerError(
                    f"tritonserver is not ready after {self.options.ready_timeout_s:.0f} s.\n"
                    f"{self.log_tail()}"
                )
            time.sleep(_POLL_S)

    def check_alive(self) -> None:
        """Raise ServerError, with the end of its log, where tritonserver has ended."""
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            return
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        if self._reader is not None:
            self._reader.join(1.0)
        if reasons := _load_failures("\n".join(self._log)):
            raise ServerError(f"tritonserver could not load its models: {reasons}")
        raise ServerError(f"tritonserver {how}. The end of its log:\n{self.log_tail()}")

    def dead_models(self) -> list[str]:
        """Models whose stub process is gone; Triton itself does not notice."""
        living = [info for info in session_members(self.pid) if info.is_alive]
        # A stub's command line ends with the name of its model instance.
        served = {word for info in living if info.parent == self.pid for word in info.command}
        return [model for model in MODELS if f"{model}_0_0" not in served]

    def reload(self, model: str) -> None:
        """Unload and load a model, which starts its stub anew. Raises ServerError."""
        for action in ("unload", "load"):
            self._post(f"/v2/repository/models/{model}/{action}")

    def watch(self, on_note: Callable[[str], None]) -> None:
        """Return never; load a model again whose stub died. Raises ServerError where tritonserver
        ended, or where a model cannot be brought back."""
        while True:
            self.check_alive()
            for model in self.dead_models():
                on_note(f"the stub of model {model} died; loading the model again.")
                try:
                    self.reload(model)
                except ServerError:
                    time.sleep(_WATCH_S)
                    self.check_alive()  # stubs die with their server: say that it is gone
                    raise
                on_note(f"model {model} is loaded again.")
            time.sleep(_WATCH_S)

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    def stop_now(self) -> None:
        """Make a `stop` that is waiting for open requests wait no longer. Safe in a signal
        handler."""
        self._hurry = True

    def stop(self) -> None:
        """Drain for at most `exit_timeout_s`, then end everything that is left. Idempotent."""
        self._stopping = True
        process = self._process
        if process is not None:
            try:
                if process.poll() is None:
                    process.terminate()
                    self._wait_for_end(process)
            finally:
                # Stubs that lost their server ignore SIGTERM.
                kill_session(process.pid)
                process.wait()
        for entry in SHM.glob(f"{self._shm_prefix}*"):
            entry.unlink(missing_ok=True)
        if self._run_dir is not None:
            shutil.rmtree(self._run_dir, ignore_errors=True)
            self._run_dir = None

    def _wait_for_end(self, process: "subprocess.Popen[str]") -> None:
        """Until the server has ended, its time is up, or nothing has been open for a while:
        tritonserver can forget that a stream has ended when its client hung up just then."""
        now = last_open = time.monotonic()
        deadline = now + self.options.exit_timeout_s + _KILL_MARGIN_S
        while process.poll() is None and now < deadline and not self._hurry:
            time.sleep(_POLL_S)
            now = time.monotonic()
            if self._has_open_requests():
                last_open = now
            elif now - last_open > _IDLE_GRACE_S:
                return

    def _has_open_requests(self) -> bool:
        """Whether the engine host says so; one that is gone has none."""
        try:
            with EngineClient(self.engine_socket) as engine:
                return not engine.ping()["idle"]
        except ServerError:
            return False

    def log_tail(self) -> str:
        """The last lines of the server's log, without the tables it prints."""
        lines = [line for line in self._log if line and line[0] not in "|+"]
        return "\n".join(lines[-_TAIL_LINES:])

    def _arguments(self, backends: Path) -> list[str]:
        options = self.options
        return [
            f"--model-repository={options.repository}",
            f"--backend-directory={backends}",
            "--model-control-mode=explicit",
            *(f"--load-model={model}" for model in MODELS),
            "--disable-auto-complete-config",
            f"--http-address={options.host}",
            f"--grpc-address={options.host}",
            f"--metrics-address={options.host}",
            f"--http-port={options.http_port}",
            f"--grpc-port={options.grpc_port}",
            f"--metrics-port={options.metrics_port}",
            f"--exit-timeout-secs={options.exit_timeout_s}",
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
            f"--http-restricted-api={_RESTRICTED}:{_ADMIN_HEADER}={self._admin_key}",
            f"--grpc-restricted-protocol={_RESTRICTED}:{_ADMIN_HEADER}={self._admin_key}",
        ]

    def _is_ready(self) -> bool:
        try:
            return self._request("GET", "/v2/health/ready")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _post(self, path: str) -> None:
        try:
            status, body = self._request("POST", path)
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{self.http_url}{path}: {error}.") from error
        if status != 200:
            raise ServerError(f"{self.http_url}{path}: {_error_text(body)}")

    def _request(self, method: str, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(
            _client_host(self.options.host), self.options.http_port, timeout=60
        )
        try:
            headers = {_ADMIN_HEADER: self._admin_key} if method == "POST" else {}
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _read_log(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._log.append(line.rstrip("\n"))
                if self._on_log is not None:
                    self._on_log(line.rstrip("\n"))


def _load_failures(log: str) -> str:
    """What our models said when they did not load, each once, without Triton's words and traceback
    around it; "" where that is not in the log."""
    found = re.findall(
        r"version 1 is at UNAVAILABLE state: Internal: (?:\w+: )?(.*?)\n\nAt:", log, re.DOTALL
    )
    return "\n".join(dict.fromkeys(found))


def _client_host(host: str) -> str:
    """Where a client on this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _error_text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")
