"""`beam-trt serve` without its printing: a server from start to a clean stop by signal."""

import signal
from collections.abc import Callable
from types import FrameType

from beam_trt.triton.server import ServerOptions, TritonServer


def serve(
    options: ServerOptions,
    on_ready: Callable[[TritonServer], None],
    on_note: Callable[[str], None],
    on_log: Callable[[str], None] | None = None,
) -> None:
    """Run tritonserver until SIGINT or SIGTERM, in the main thread. The first signal lets open
    requests finish within the exit timeout, a second one ends them. Returns after a clean stop.
    Raises ServerError where the server cannot start, or ends by itself."""
    server = TritonServer(options, on_log)

    def on_signal(number: int, frame: FrameType | None) -> None:
        if server.is_stopping:
            server.stop_now()
        else:
            raise KeyboardInterrupt

    previous = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        server.start()
        server.wait_ready()
        on_ready(server)
        server.watch(on_note)
    except KeyboardInterrupt:
        on_note(
            f"stopping: open requests may take up to {options.exit_timeout_s} s; "
            "Ctrl-C again ends them now."
        )
    finally:
        server.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)
