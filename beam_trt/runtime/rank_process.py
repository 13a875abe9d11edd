"""A rank of an engine in a process of its own, from both sides: starting it, and being it.

`python -m beam_trt.runtime.rank_process ARGUMENTS` is what `RankProcesses` starts; ARGUMENTS is
JSON of `RankArguments`. A rank reads one packed step after another from its channel and ends when
the channel does. Knows nothing about requests.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal, get_args

from beam_trt.errors import BeamTrtError
from beam_trt.runtime.session import RankLost

Collectives = Literal["shared_memory", "gloo"]
"""How ranks exchange partial sums; see `workers.open_session`."""

COLLECTIVES: tuple[Collectives, ...] = get_args(Collectives)

CLOSE_TIMEOUT_S = 5.0
"""How long a rank may take to end by itself before it is killed."""

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class RankArguments:
    """What a rank's process is told. Descriptors are open in it under the same numbers.

    runtime: fields of RuntimeConfig. channel_fd: steps come in here, and "ready" or an error goes
    out once. links: arguments of `workers.Links.communicator`.
    """

    engine_dir: str
    rank: int
    runtime: dict[str, Any]
    num_threads: int
    channel_fd: int
    links: dict[str, Any]
    inherited_fds: tuple[int, ...]


class RankProcesses:
    """Starts ranks and knows when one is gone. They live no longer than this process.

    A thread starts them and stays until `close`: the kernel ends a rank when the very thread that
    started it ends, not when its process does.
    """

    def __init__(self, ranks: Sequence[RankArguments]) -> None:
        self._ranks = ranks
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._error: OSError | None = None
        self._closing = threading.Event()
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._live, args=(started,), name="rank-processes", daemon=True
        )
        self._thread.start()
        started.wait()

    def describe_lost(self) -> str | None:
        """Which ranks are gone and how they ended, None while all live."""
        if self._error is not None:
            return f"the ranks' processes cannot be started: {self._error}"
        lost = [
            f"rank {rank} (process {process.pid}) {_ending(process.returncode)}"
            for rank, process in self._processes.items()
            if process.poll() is not None
        ]
        return ", ".join(lost) or None

    def wait_lost(self, timeout_s: float) -> str | None:
        """`describe_lost` as soon as a rank is gone, at the latest after `timeout_s`: a rank's
        pipes close a moment before it can be waited for."""
        deadline = threading.Event()
        for _ in range(max(1, int(timeout_s / 0.01))):
            if lost := self.describe_lost():
                return lost
            deadline.wait(0.01)
        return None

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes.values())

    def close(self) -> None:
        """Wait for the ranks to end, whose channels the caller has closed; kill those that do not.
        Safe to call twice."""
        self._closing.set()
        self._thread.join()

    def _live(self, started: threading.Event) -> None:
        try:
            for arguments in self._ranks:
                self._processes[arguments.rank] = _start(arguments)
        except OSError as error:
            self._error = error
        started.set()
        self._closing.wait()
        for process in self._processes.values():
            try:
                process.wait(CLOSE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start(arguments: RankArguments) -> subprocess.Popen[bytes]:
    threads = str(arguments.num_threads)
    return subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps(asdict(arguments))],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
        pass_fds=(arguments.channel_fd, *arguments.inherited_fds),
        env={
            **os.environ,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            # Waiting threads must not hold the cores that other ranks need.
            "OMP_WAIT_POLICY": "PASSIVE",
        },
    )


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (OSError, ValueError, AttributeError):
        return False
    return True


def _ending(returncode: int | None) -> str:
    assert returncode is not None
    if returncode < 0:
        return f"was ended by {signal.Signals(-returncode).name}"
    return f"ended with exit code {returncode}"


def main(argument: str) -> None:
    """Be one rank until the channel ends."""
    _die_with_parent()
    # Ctrl-C reaches the whole terminal; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    values = json.loads(argument)
    arguments = RankArguments(**{**values, "inherited_fds": tuple(values["inherited_fds"])})
    channel = Connection(arguments.channel_fd)
    try:
        _serve(arguments, channel)
    except (EOFError, ConnectionError, RankLost):
        # The parent closed, or a peer is gone and the parent says which. Nothing here outlives the
        # process, and taking torch apart properly would take a second.
        os._exit(0)
    except BeamTrtError as error:
        channel.send_bytes(str(error).encode())
        sys.exit(1)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve(arguments: RankArguments, channel: Connection) -> None:
    import torch

    from beam_trt.runtime.workers import RankWorker

    torch.set_num_threads(arguments.num_threads)
    RankWorker(arguments, channel).serve()


if __name__ == "__main__":
    main(sys.argv[1])
