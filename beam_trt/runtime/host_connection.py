"""The host's side of its clients' connections: requests in, all outputs of a step out at once.

Knows the messages of `runtime.wire`; nothing about sockets' paths or processes.
"""

import contextlib
import itertools
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from beam_trt.errors import BeamTrtError, ServerError
from beam_trt.runtime import wire
from beam_trt.runtime.executor import Executor
from beam_trt.runtime.request import Request, RequestOutput, Timings, Usage

MAX_UNSENT_BYTES = 64 * 2**20
"""A client that leaves more than this unread is disconnected, so that it cannot fill our memory."""

_logger = logging.getLogger(__name__)


class Connections:
    """All clients of one executor. Request ids are a client's own: two clients may use the same."""

    def __init__(self, executor: Executor, info: dict[str, Any]) -> None:
        self._executor = executor
        self._info = info
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._clients: dict[int, _Client] = {}
        self._is_refusing = False
        executor.on_step_end = self._flush

    def add(self, connection: socket.socket) -> None:
        """Serve one more client in threads of its own."""
        client = _Client(next(self._numbers), connection, self)
        with self._lock:
            self._clients[client.number] = client
        client.start(self._info)

    def submit(self, client: "_Client", request: Request) -> None:
        if self._is_refusing:
            raise ServerError("the engine host is stopping.")
        name = f"{client.number}/{request.request_id}"
        self._executor.submit(replace(request, request_id=name), client.sink(request.request_id))

    def cancel(self, client: "_Client", request_id: str) -> None:
        self._executor.cancel(f"{client.number}/{request_id}")

    def answer(self, op: str) -> dict[str, Any]:
        """Value of the reply to "stats" or "ping"."""
        if op == "stats":
            return self._executor.stats().to_dict()
        return self._executor.health().to_dict()

    def gone(self, client: "_Client") -> None:
        """The client hung up: nobody reads what its requests would still say."""
        with self._lock:
            self._clients.pop(client.number, None)
        for request_id in client.open_requests():
            self.cancel(client, request_id)

    def refuse_requests(self) -> None:
        """From now on, answer new requests with an error."""
        self._is_refusing = True

    def close(self) -> None:
        """Send what is unsent, then hang up on every client."""
        with self._lock:
            clients = tuple(self._clients.values())
        for client in clients:
            client.close()

    def _flush(self) -> None:
        with self._lock:
            clients = tuple(self._clients.values())
        for client in clients:
            client.flush()


class _Client:
    """One connection: a thread that reads messages and one that writes them."""

    def __init__(self, number: int, connection: socket.socket, owner: Connections) -> None:
        self.number = number
        self._connection = connection
        self._owner = owner
        self._lock = threading.Lock()  # guards the three below
        self._open: set[str] = set()
        self._outputs: list[RequestOutput] = []
        self._unsent_bytes = 0
        self._unsent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name=f"read-{number}", daemon=True)
        self._writer = threading.Thread(target=self._write, name=f"write-{number}", daemon=True)

    def start(self, info: dict[str, Any]) -> None:
        self._send({"op": "hello", "protocol": wire.PROTOCOL, "info": info})
        self._writer.start()
        self._reader.start()

    def open_requests(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._open)

    def sink(self, request_id: str) -> Callable[[RequestOutput], None]:
        """Collects outputs until `flush`, under the client's own id."""

        def collect(output: RequestOutput) -> None:
            with self._lock:
                self._outputs.append(replace(output, request_id=request_id))
                if output.is_last:
                    self._open.discard(request_id)

        with self._lock:
            self._open.add(request_id)
        return collect

    def flush(self) -> None:
        """Send the collected outputs as one message."""
        with self._lock:
            outputs, self._outputs = self._outputs, []
        if outputs:
            values = [wire.output_to_dict(output) for output in outputs]
            self._send({"op": "outputs", "outputs": values})

    def close(self) -> None:
        """After everything is sent, and at most a second later."""
        self._unsent.put(None)
        self._writer.join(timeout=1.0)
        self._hang_up()
        self._reader.join()

    def _send(self, message: dict[str, Any]) -> None:
        line = wire.encode(message)
        with self._lock:
            self._unsent_bytes += len(line)
            is_stuck = self._unsent_bytes > MAX_UNSENT_BYTES
        if is_stuck:
            _logger.warning("client %d reads nothing; disconnecting it", self.number)
            self._hang_up()
        else:
            self._unsent.put(line)

    def _write(self) -> None:
        while (line := self._unsent.get()) is not None:
            try:
                self._connection.sendall(line)
            except OSError:  # it hung up; the reader notices and cancels
                return
            with self._lock:
                self._unsent_bytes -= len(line)

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._connection.makefile("rb") as lines:
            for line in lines:
                try:
                    self._receive(wire.decode(line))
                except (ValueError, KeyError) as error:
                    _logger.warning("client %d sent nonsense: %r", self.number, error)
                    break
        self._owner.gone(self)
        self._hang_up()
        self._unsent.put(None)
        self._connection.close()

    def _receive(self, message: dict[str, Any]) -> None:
        op = message["op"]
        if op == "submit":
            self._submit(message["request"])
        elif op == "cancel":
            self._owner.cancel(self, message["request_id"])
        elif op in ("stats", "ping"):
            reply = {"op": "reply", "number": message["number"], "value": self._owner.answer(op)}
            self._send(reply)
        else:
            raise ValueError(f"unknown op {op!r}")

    def _submit(self, values: dict[str, Any]) -> None:
        if values["request_id"] in self._open:
            # An answer under that id would end the other request.
            raise ValueError(f"request id {values['request_id']!r} is still open")
        try:
            self._owner.submit(self, wire.request_from_dict(values))
        except BeamTrtError as error:
            refusal = RequestOutput(
                request_id=str(values["request_id"]),
                token_ids=(),
                logprobs=None,
                finish_reason="error",
                stop_token_id=None,
                error=str(error),
                usage=Usage(len(values["prompt_ids"]), 0),
                timings=Timings(arrival=time.time_ns()),
            )
            with self._lock:
                self._open.discard(refusal.request_id)
            self._send({"op": "outputs", "outputs": [wire.output_to_dict(refusal)]})

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):  # already hung up
            self._connection.shutdown(socket.SHUT_RDWR)
