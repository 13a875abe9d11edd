"""What the tests of the real tritonserver ask it, and ports for it."""

import socket
from contextlib import ExitStack
from pathlib import Path

from beam_trt.triton.server import ServerOptions

MAX_TOKENS = 16
TEXTS = (
    "a",
    "What is 17 + 25?",
    "Grüße aus Zürich, 世界! \U0001f680",
    "def add(a, b):\n    return a + b\n" * 6,
    *(f"Request number {n} says: " + "one two three " * n for n in range(12)),
)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on; all are held until all are known, so they differ."""
    with ExitStack() as held:
        ports = []
        for _ in range(count):
            probe = held.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
        return ports


def server_options(repository: Path, exit_timeout_s: int = 5) -> ServerOptions:
    http_port, grpc_port, metrics_port = free_ports(3)
    return ServerOptions(
        repository,
        http_port,
        grpc_port,
        metrics_port,
        exit_timeout_s=exit_timeout_s,
        ready_timeout_s=180,
    )
