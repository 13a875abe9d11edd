"""Talks to the engine host of this machine over its unix socket, many requests at once.

Knows the messages of `runtime.wire`, nothing about engines or text; needs no torch.
"""

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beam_trt.errors import RequestError, ServerError
from beam_trt.runtime import wire
from beam_trt.runtime.request import Request, RequestLimits, RequestOutput, Timings, Usage

Sink = Callable[[RequestOutput], None]
REPLY_TIMEOUT_S = 30.0


@dataclass(slots=True)
class _Open:
    """A request that has not ended, with what is needed to end it when the host goes away."""

    sink: Sink
    usage: Usage
    timings: Timings


class EngineClient:
    """One connection to an engine host. Thread-safe; sinks are called from one reader thread, in
    order, and must return quickly. An exception of a sink cancels its request.

    `EngineClient(path, connect_timeout_s=60)` waits that long for the host's socket to appear.
    Raises ServerError when no host answers or its protocol differs.
    """

    def __init__(self, socket_path: Path | str, connect_timeout_s: float = 0.0) -> None:
        self._path = Path(socket_path)
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._open: dict[str, _Open] = {}
        self._replies: dict[int, Future[dict[str, Any]]] = {}
        self._sequence = itertools.count()
        self._gone: str | None = None
        self._socket = _connect(self._path, connect_timeout_s)
        self._lines = self._socket.makefile("rb")
        try:
            self._info = self._read_hello()
        except BaseException:
            self._lines.close()
            self._socket.close()
            raise
        self._limits = RequestLimits(**self._info["limits"])
        self._reader = threading.Thread(target=self._read, name="engine-client", daemon=True)
        self._reader.start()

    @property
    def limits(self) -> RequestLimits:
        """What a request may ask for; `submit` checks it."""
        return self._limits

    def submit(self, request: Request, sink: Sink) -> None:
        """Send a request. `sink` gets every output, the last with a `finish_reason`. Raises
        RequestError when the request can never run or its id is in
        use, and ServerError when the host is gone."""
        self._limits.check(request)
        usage = Usage(prompt_tokens=len(request.prompt_ids), generated_tokens=0)
        with self._lock:
            if self._gone is not None:
                raise ServerError(self._gone)
            if request.request_id in self._open:
                raise RequestError(
                    f"request {request.request_id!r}: a request of this client with that id is "
                    "still open. Use a new id."
                )
            self._open[request.request_id] = _Open(sink, usage, Timings(arrival=time.time_ns()))
        self._send({"op": "submit", "request": wire.request_to_dict(request)})

    def cancel(self, request_id: str) -> None:
        """Ask the host to end a request; its sink gets finish_reason "cancelled" unless it ended
        otherwise first. Unknown and ended requests are left alone."""
        self._send({"op": "cancel", "request_id": request_id})

    def info(self) -> dict[str, Any]:
        """What the host said of itself when we connected: `engine_dir`, `tokenizer_dir`, `engine`
        (its config.json), `runtime`, `limits`, `pid`."""
        return self._info

    def stats(self) -> dict[str, Any]:
        """The executor's latest `IterationStats` as plain values. Raises ServerError."""
        return self._ask("stats")

    def ping(self, timeout_s: float = 5.0) -> dict[str, Any]:
        """{"healthy": bool, "idle": bool, "reason": str|None, "seconds_in_step": float}. Healthy
        means that the executor's loop is alive and is idle or has stepped lately. Raises
        ServerError when the host does not answer within `timeout_s`."""
        return self._ask("ping", timeout_s)

    def close(self) -> None:
        """Disconnect, which cancels this client's open requests."""
        with contextlib.suppress(OSError):  # the host may have hung up first
            self._socket.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._reader:
            self._reader.join()
        self._socket.close()

    def __enter__(self) -> "EngineClient":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read_hello(self) -> dict[str, Any]:
        try:
            line = self._lines.readline()
        except OSError as error:
            raise ServerError(f"{self._path}: the engine host went away: {error}.") from error
        try:
            hello = wire.decode(line)
        except ValueError:
            raise ServerError(
                f"{self._path}: expected an engine host, which greets with a line of JSON, got "
                f"{line[:80]!r}. Check that the path is the one given to --socket."
            ) from None
        if hello.get("op") != "hello" or hello.get("protocol") != wire.PROTOCOL:
            raise ServerError(
                f"{self._path}: its host speaks protocol {hello.get('protocol')}, this client "
                f"{wire.PROTOCOL}. Run both from one version of beam-trt."
            )
        info = hello["info"]
        assert isinstance(info, dict), info
        return info

    def _send(self, message: dict[str, Any]) -> None:
        try:
            with self._write_lock:
                self._socket.sendall(wire.encode(message))
        except OSError as error:
            self._end(f"{self._path}: the engine host went away: {error}. Start it again.")

    def _ask(self, op: str, timeout_s: float = REPLY_TIMEOUT_S) -> dict[str, Any]:
        number, reply = next(self._sequence), Future[dict[str, Any]]()
        with self._lock:
            if self._gone is not None:
                raise ServerError(self._gone)
            self._replies[number] = reply
        self._send({"op": op, "number": number})
        try:
            return reply.result(timeout_s)
        except TimeoutError:
            raise ServerError(
                f"{self._path}: the engine host did not answer {op!r} within {timeout_s} s."
            ) from None
        finally:
            with self._lock:
                self._replies.pop(number, None)

    def _read(self) -> None:
        reason = f"{self._path}: the engine host went away. Start it again."
        try:
            with self._lines:
                for line in self._lines:
                    self._receive(wire.decode(line))
        except (OSError, ValueError) as error:
            reason = f"{self._path}: the engine host went away: {error}. Start it again."
        self._end(reason)

    def _receive(self, message: dict[str, Any]) -> None:
        if message["op"] == "outputs":
            for values in message["outputs"]:
                self._deliver(wire.output_from_dict(values))
            return
        with self._lock:
            reply = self._replies.get(message["number"])
        if reply is not None:
            reply.set_result(message["value"])

    def _deliver(self, output: RequestOutput) -> None:
        with self._lock:
            entry = self._open.get(output.request_id)
            if entry is None:  # its sink failed before
                return
            entry.usage, entry.timings = output.usage, output.timings
            if output.is_last:
                del self._open[output.request_id]
        try:
            entry.sink(output)
        except Exception:  # noqa: BLE001  a sink's bug must not stop the others' outputs
            with self._lock:
                self._open.pop(output.request_id, None)
            self.cancel(output.request_id)

    def _end(self, reason: str) -> None:
        """Answer everything open with an error, once."""
        with self._lock:
            if self._gone is None:
                self._gone = reason
            entries, self._open = self._open, {}
            replies, self._replies = self._replies, {}
        for reply in replies.values():
            reply.set_exception(ServerError(reason))
        for request_id, entry in entries.items():
            with contextlib.suppress(Exception):  # see _deliver
                entry.sink(
                    RequestOutput(
                        request_id=request_id,
                        token_ids=(),
                        logprobs=None,
                        finish_reason="error",
                        stop_token_id=None,
                        error=reason,
                        usage=entry.usage,
                        timings=entry.timings,
                    )
                )


def _connect(path: Path, timeout_s: float) -> socket.socket:
    deadline = time.monotonic() + timeout_s
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(str(path))
            return connection
        except OSError as error:
            connection.close()
            if time.monotonic() >= deadline:
                raise ServerError(
                    f"{path}: no engine host answers: {error.strerror}. "
                    f"Start one: python -m beam_trt.runtime.host ENGINE --socket {path}"
                ) from error
        time.sleep(0.02)
