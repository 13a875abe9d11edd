"""An engine host without an engine, for tests of what is above it: speaks the socket protocol of
`runtime.wire`, and continues a prompt by repeating it, one token a step.

Run by the wrapper that `fake_python` writes, in place of `python -m beam_trt.runtime.host`.
"""

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

from beam_trt.runtime import wire
from beam_trt.runtime.request import Request, RequestOutput, Timings, Usage

STEP_S = 0.01
LIMITS = {"vocab_size": 2048, "max_seq_len": 4096, "max_cached_tokens": 4096}


def fake_python(folder: Path) -> Path:
    """A script to be run where an interpreter is expected; it runs this file instead."""
    script = folder / "fake_python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__)}" "$@"\n')
    script.chmod(0o755)
    return script


class Connection:
    num_open = 0
    counting = threading.Lock()

    def __init__(self, connection: socket.socket, engine_dir: str) -> None:
        self.socket = connection
        self.lock = threading.Lock()
        self.cancelled: set[str] = set()
        info = {"engine_dir": engine_dir, "limits": LIMITS}
        self.send({"op": "hello", "protocol": wire.PROTOCOL, "info": info})

    def send(self, message: dict[str, object]) -> None:
        with self.lock:
            self.socket.sendall(wire.encode(message))

    def serve(self) -> None:
        for line in self.socket.makefile("rb"):
            message = wire.decode(line)
            if message["op"] == "submit":
                request = wire.request_from_dict(message["request"])
                threading.Thread(target=self.generate, args=(request,), daemon=True).start()
            elif message["op"] == "cancel":
                self.cancelled.add(message["request_id"])
            else:
                idle = not Connection.num_open
                value = {"healthy": True, "idle": idle, "reason": None, "seconds_in_step": 0.0}
                self.send({"op": "reply", "number": message["number"], "value": value})

    def generate(self, request: Request) -> None:
        with self.counting:
            Connection.num_open += 1
        try:
            self.repeat(request)
        finally:
            with self.counting:
                Connection.num_open -= 1

    def repeat(self, request: Request) -> None:
        arrival = time.time_ns()
        for n in range(1, request.sampling.max_tokens + 1):
            time.sleep(STEP_S)
            cancelled = request.request_id in self.cancelled
            last = n == request.sampling.max_tokens
            token = request.prompt_ids[(n - 1) % len(request.prompt_ids)]
            output = RequestOutput(
                request_id=request.request_id,
                token_ids=() if cancelled else (token,),
                logprobs=None,
                finish_reason="cancelled" if cancelled else "length" if last else None,
                stop_token_id=None,
                error=None,
                usage=Usage(len(request.prompt_ids), n),
                timings=Timings(arrival, arrival, arrival, time.time_ns()),
            )
            self.send({"op": "outputs", "outputs": [wire.output_to_dict(output)]})
            if cancelled:
                return


def die_with_parent() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(1)


def main() -> None:
    engine_dir, socket_path = sys.argv[3], sys.argv[5]
    json.loads((Path(engine_dir) / "config.json").read_text())
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(socket_path)
    listener.listen()
    threading.Thread(target=die_with_parent, daemon=True).start()
    print(f"fake host of {engine_dir}", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=Connection(connection, engine_dir).serve, daemon=True).start()


if __name__ == "__main__":
    main()
