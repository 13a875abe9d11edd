"""The engine host: one process that owns an engine's executor and serves local clients.

    python -m beam_trt.runtime.host ENGINE --socket PATH

Prints one line of JSON on stdout when it is ready. SIGTERM and Ctrl-C stop it: it takes no more
requests, lets the open ones finish for `--drain-seconds`, cancels the rest and removes its socket.
Exits 0 after that, 1 when the engine cannot be opened or fails. Knows no text.
"""

import argparse
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from beam_trt.config.runtime import RuntimeConfig
from beam_trt.engine.manifest import EngineConfig
from beam_trt.errors import BeamTrtError, ServerError
from beam_trt.runtime.executor import Executor
from beam_trt.runtime.host_connection import Connections
from beam_trt.runtime.rank_process import COLLECTIVES

_logger = logging.getLogger("beam_trt.host")

_WATCH_S = 0.2
"""How often the main thread looks at what may end the host."""

_RUNTIME_OPTIONS = (
    "max_batch_size",
    "max_num_tokens",
    "max_seq_len",
    "kv_cache_bytes",
    "max_queued_requests",
)


class Host:
    """Serves one executor on a unix socket until `stop` is asked for or the executor fails."""

    def __init__(
        self, engine: EngineConfig, runtime: RuntimeConfig, executor: Executor, path: Path
    ) -> None:
        self.executor = executor
        self.connections = Connections(executor, describe(engine, runtime, executor))
        self._path = path
        self._is_closed = False
        self._listener = _listen(path)
        self._acceptor = threading.Thread(target=self._accept, name="accept", daemon=True)

    def start(self) -> None:
        self.executor.start()
        self._acceptor.start()

    def close(self, drain_s: float = 0.0) -> None:
        """Stop taking clients and requests, wait for the open ones, cancel the rest. Safe to call
        twice."""
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        # A thread in accept() only wakes when the socket is shut down.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.connections.refuse_requests()
        deadline = time.monotonic() + drain_s
        while self.executor.num_open and time.monotonic() < deadline:
            time.sleep(0.01)
        self.executor.close()
        self.connections.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            self.connections.add(client)


def describe(engine: EngineConfig, runtime: RuntimeConfig, executor: Executor) -> dict[str, Any]:
    """What clients are greeted with; see `EngineClient.info`."""
    return {
        "pid": os.getpid(),
        "engine_dir": str(engine.engine_dir),
        "tokenizer_dir": str(engine.tokenizer_dir),
        "engine": engine.to_dict(),
        "runtime": asdict(runtime),
        "limits": asdict(executor.limits),
    }


def _listen(path: Path) -> socket.socket:
    """A listening socket at `path`, in place of one that a dead host left there."""
    if path.exists():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                path.unlink()
            else:
                raise ServerError(
                    f"{path}: another engine host serves there. Stop it, or use another --socket."
                )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Only this user may talk to the engine; the mode must be right before anyone can connect.
        before = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ServerError(
            f"{path}: cannot listen there: {error.strerror or error}. Use another --socket: at "
            "most 107 bytes long, in a folder that exists and can be written."
        ) from error
    return listener


class _Stop:
    """Why the host should end; set by signals, by the parent's death and by a failed engine."""

    def __init__(self, die_with_parent: bool) -> None:
        self.asked = threading.Event()
        self._parent = os.getppid() if die_with_parent else None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def orphaned(self) -> bool:
        return self._parent is not None and os.getppid() != self._parent

    def _on_signal(self, number: int, frame: object) -> None:
        if self.asked.is_set():
            os._exit(128 + number)  # asked twice: at once
        self.asked.set()


@contextlib.contextmanager
def _ended_with_parent(stop: _Stop) -> Iterator[None]:
    """Even while the main thread is busy loading: end at once when the parent is gone by then."""
    loaded = threading.Event()

    def watch() -> None:
        while not loaded.wait(_WATCH_S):
            if stop.orphaned() or stop.asked.is_set():
                os._exit(1)

    thread = threading.Thread(target=watch, name="watch-parent", daemon=True)
    thread.start()
    try:
        yield
    finally:
        loaded.set()
        thread.join()


def serve(arguments: argparse.Namespace) -> int:
    """Open the engine, serve until told to stop; the exit code."""
    stop = _Stop(arguments.die_with_parent)
    engine = EngineConfig.load(arguments.engine)
    options = {name: getattr(arguments, name) for name in _RUNTIME_OPTIONS}
    runtime = RuntimeConfig.from_build(engine.build, **options)
    with _ended_with_parent(stop):
        from beam_trt.runtime.workers import open_session

        session = open_session(
            arguments.engine, runtime, arguments.num_ranks, arguments.collectives
        )
        executor = Executor(session, engine, runtime)
        try:
            host = Host(engine, runtime, executor, arguments.socket)
        except BaseException:
            executor.close()
            raise
    host.start()
    ready = {"ready": True, "socket": str(arguments.socket), "pid": os.getpid()}
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it; serve all the same
        print(json.dumps(ready), flush=True)
    failed = None
    while not (stop.asked.wait(_WATCH_S) or stop.orphaned()):
        if failed := executor.failure:
            break
    if failed:
        _logger.error("%s", failed)
    host.close(0.0 if failed or stop.orphaned() else arguments.drain_seconds)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m beam_trt.runtime.host",
        description="Serve an engine to clients on this machine over a unix socket.",
    )
    parser.add_argument("engine", type=Path, help="engine directory")
    parser.add_argument("--socket", type=Path, required=True, help="path of the socket to make")
    parser.add_argument("--num-ranks", type=int, help="refuse an engine built for another number")
    parser.add_argument(
        "--collectives",
        choices=COLLECTIVES,
        default="shared_memory",
        help="how ranks exchange partial sums (default: %(default)s)",
    )
    parser.add_argument(
        "--drain-seconds",
        type=float,
        default=0.0,
        metavar="S",
        help="on SIGTERM, let open requests finish for that long (default: cancel at once)",
    )
    parser.add_argument(
        "--die-with-parent", action="store_true", help="end when the starting process is gone"
    )
    for name in _RUNTIME_OPTIONS:
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, metavar="N", help="default: the engine's"
        )
    return parser


def main() -> None:
    # Before torch loads OpenMP: waiting threads must not hold cores that clients need.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    arguments = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        code = serve(arguments)
    except BeamTrtError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    logging.shutdown()
    sys.exit(code)


if __name__ == "__main__":
    main()
