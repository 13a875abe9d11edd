"""Opens an engine on this host: one rank in this process, or tensor-parallel ranks as processes.

Rank 0 lives in this process with the executor and samples; every step goes to the others as the
packed integers of `StepInput`, and all run the same forward.
"""

import contextlib
import os
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

from beam_trt.config.model import ModelConfig
from beam_trt.config.runtime import RuntimeConfig
from beam_trt.engine.manifest import EngineConfig
from beam_trt.errors import EngineError, ServerError
from beam_trt.model.communicator import SingleRank
from beam_trt.runtime.collectives import (
    GlooExchange,
    RankCommunicator,
    SharedMemoryExchange,
)
from beam_trt.runtime.model_session import ModelSession
from beam_trt.runtime.rank_process import Collectives, RankArguments, RankProcesses
from beam_trt.runtime.session import RankLost, SampledToken, SamplingRow, Session
from beam_trt.runtime.step_input import StepInput

_READY = b"ready"
_START_TIMEOUT_S = 600.0
_STEP_TIMEOUT_S = 120.0
_LOST_TIMEOUT_S = 2.0
_ALIGNMENT = 64
_THREADED_HIDDEN_SIZE = 1024


def open_session(
    engine_dir: Path,
    runtime: RuntimeConfig,
    num_ranks: int | None = None,
    collectives: Collectives = "shared_memory",
) -> Session:
    """Load an engine and start its ranks. `num_ranks` None takes what the engine was built for.

    `collectives` says how ranks exchange partial sums; results are the same bits. "gloo" is
    torch.distributed over loopback; "shared_memory" needs no socket and is many times faster where
    ranks outnumber cores. Raises EngineError when the engine is damaged, was built for another rank
    count or machine, or a rank fails to start. Holds the weights' mapped files and the KV pools;
    sets torch's number of threads for this whole process.
    """
    engine = EngineConfig.load(engine_dir)
    engine.check_start(num_ranks=num_ranks)
    num_threads = threads_per_rank(engine.mapping.tp_size, engine.model.hidden_size)
    torch.set_num_threads(num_threads)
    if engine.mapping.tp_size == 1:
        return ModelSession(engine, runtime, SingleRank())
    return TensorParallelSession(engine, runtime, num_threads, collectives)


def threads_per_rank(num_ranks: int, hidden_size: int) -> int:
    """Cores this process may use, divided evenly; at least one. A small model gets one: its
    operators are over before a second thread has woken, and where cores are shared the threads
    spend milliseconds waiting for each other (measured: 30 ms a step became 200)."""
    if hidden_size < _THREADED_HIDDEN_SIZE:
        return 1
    return max(1, len(os.sched_getaffinity(0)) // num_ranks)


@dataclass(frozen=True, slots=True)
class Links:
    """How one rank reaches the others; plain values that travel as JSON, descriptors included."""

    collectives: Collectives
    rank: int
    size: int
    store: str
    memory_fd: int
    capacity: int
    writers: tuple[tuple[int, int], ...]
    readers: tuple[tuple[int, int], ...]

    def communicator(self) -> RankCommunicator:
        """Join the other ranks; blocks until all have when `collectives` is gloo."""
        if self.collectives == "gloo":
            gloo = GlooExchange(self.rank, self.size, Path(self.store), _STEP_TIMEOUT_S)
            return RankCommunicator(self.rank, self.size, gloo)
        memory = SharedMemoryExchange(
            self.rank,
            self.size,
            self.memory_fd,
            self.capacity,
            dict(self.writers),
            dict(self.readers),
        )
        return RankCommunicator(self.rank, self.size, memory)

    @property
    def fds(self) -> tuple[int, ...]:
        ends = (fd for _, fd in (*self.writers, *self.readers))
        return (self.memory_fd, *ends) if self.memory_fd >= 0 else ()


class RankWorker:
    """Ranks 1 and up, in their own process: runs every step that comes in over the channel."""

    def __init__(self, arguments: RankArguments, channel: Connection) -> None:
        self._channel = channel
        engine = EngineConfig.load(Path(arguments.engine_dir))
        runtime = RuntimeConfig(**arguments.runtime)
        links = Links(**arguments.links)
        channel.send_bytes(_READY)
        self._session = ModelSession(engine, runtime, links.communicator())
        channel.send_bytes(_READY)

    def serve(self) -> None:
        """Until the channel ends, which is EOFError."""
        while True:
            step = np.frombuffer(bytearray(self._channel.recv_bytes()), dtype=np.uint8)
            self._session.forward(StepInput.unpack(step))


class TensorParallelSession:
    """A `Session` over `tp_size` ranks: rank 0 here, the others as processes."""

    def __init__(
        self,
        engine: EngineConfig,
        runtime: RuntimeConfig,
        num_threads: int,
        collectives: Collectives,
    ) -> None:
        size = engine.mapping.tp_size
        self._channels: list[Connection] = []
        self._is_closed = False
        self._session: ModelSession | None = None
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="beam-trt-"))
            links = _make_links(engine.model, runtime, size, collectives, Path(folder))
            arguments = []
            theirs = [socket.socketpair() for _ in range(size - 1)]
            for link, (mine, other) in zip(links[1:], theirs, strict=True):
                self._channels.append(Connection(mine.detach()))
                arguments.append(
                    RankArguments(
                        engine_dir=str(engine.engine_dir),
                        rank=link.rank,
                        runtime=asdict(runtime),
                        num_threads=num_threads,
                        channel_fd=other.fileno(),
                        links=asdict(link),
                        inherited_fds=link.fds,
                    )
                )
            self._own_fds = links[0].fds
            self._processes = RankProcesses(arguments)
            # Only the ranks may hold their ends, or nobody would see them close.
            for _, other in theirs:
                other.close()
            for fd in {fd for link in links[1:] for fd in link.fds} - set(self._own_fds):
                os.close(fd)
            try:
                self._await_ready()
                self._session = ModelSession(engine, runtime, links[0].communicator())
                self._await_ready()
            except BaseException:
                self.close()
                raise

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of ranks 1 and up."""
        return self._processes.pids

    def run(self, step: StepInput, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        assert self._session is not None, "closed"
        try:
            for channel in self._channels:
                channel.send_bytes(step.packed.data)
            return self._session.run(step, rows)
        except (OSError, RankLost) as error:
            lost = self._processes.wait_lost(_LOST_TIMEOUT_S) or str(error)
            raise ServerError(f"the engine lost a rank: {lost}.") from error

    def check(self) -> None:
        if lost := self._processes.describe_lost():
            raise ServerError(f"the engine lost a rank: {lost}.")

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._session = None  # with it go weights, pools and the memory shared with the ranks
        for channel in self._channels:
            channel.close()
        for fd in self._own_fds:
            os.close(fd)
        self._processes.close()

    def _await_ready(self) -> None:
        """Each rank says twice that it is well: before it joins the others, which would wait for
        it, and when it can run."""
        for rank, channel in enumerate(self._channels, start=1):
            try:
                if not channel.poll(_START_TIMEOUT_S):
                    raise EngineError(f"rank {rank} did not start within {_START_TIMEOUT_S:.0f} s.")
                message = channel.recv_bytes()
            except (EOFError, OSError) as error:
                lost = self._processes.wait_lost(_LOST_TIMEOUT_S) or str(error)
                raise EngineError(
                    f"a rank did not start: {lost}. Its own message is above."
                ) from error
            if message != _READY:
                raise EngineError(f"rank {rank} did not start: {message.decode()}")


def _make_links(
    model: ModelConfig, runtime: RuntimeConfig, size: int, collectives: Collectives, folder: Path
) -> list[Links]:
    store = str(folder / "gloo")
    if collectives == "gloo":
        return [Links(collectives, rank, size, store, -1, 0, (), ()) for rank in range(size)]
    capacity = exchange_capacity(model, runtime, size)
    memory_fd = os.memfd_create("beam-trt-exchange")
    os.ftruncate(memory_fd, SharedMemoryExchange.memory_bytes(size, capacity))
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
    pipes = {pair: os.pipe() for pair in pairs}
    return [
        Links(
            collectives,
            rank,
            size,
            store,
            memory_fd,
            capacity,
            writers=tuple((b, pipes[a, b][1]) for a, b in pairs if a == rank),
            readers=tuple((a, pipes[a, b][0]) for a, b in pairs if b == rank),
        )
        for rank in range(size)
    ]


def exchange_capacity(model: ModelConfig, runtime: RuntimeConfig, size: int) -> int:
    """Bytes of the largest tensor one rank ever sends: a full step's hidden states in fp32, or its
    part of every request's logits in fp32."""
    hidden = 4 * runtime.max_num_tokens * model.hidden_size
    logits = 4 * runtime.max_batch_size * (model.vocab_size // size)
    return -(-max(hidden, logits) // _ALIGNMENT) * _ALIGNMENT
