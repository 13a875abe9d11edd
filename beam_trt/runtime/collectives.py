"""Sums and gathers between the ranks of one engine on one host, each a process.

Two ways to move the bytes, one way to add them: every rank gets every partial sum and adds them in
rank order. So all ranks hold the same bits, and a token's sum does not depend on how many other
tokens travel with it, which a ring all-reduce cannot promise.
"""

import mmap
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import torch
from torch.distributed import FileStore, ProcessGroupGloo

from beam_trt.runtime.session import RankLost


class _Exchange(Protocol):
    """Moves one tensor from each rank to all."""

    def gather(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """The contiguous `tensor` of each rank, in rank order, all of one shape. Views that are
        valid until the next but one `gather`. Raises RankLost."""
        ...


class RankCommunicator:
    """`model.communicator.Communicator` over an exchange."""

    def __init__(self, rank: int, size: int, exchange: _Exchange) -> None:
        self.rank = rank
        self.size = size
        self._exchange = exchange

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        assert tensor.dtype == torch.float32, f"partial sums must be fp32, got {tensor.dtype}"
        first, second, *others = self._exchange.gather(tensor.contiguous())
        total = first + second
        for other in others:
            total += other
        return total

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat(tuple(self._exchange.gather(tensor.contiguous())), dim=-1)


class GlooExchange:
    """Over torch.distributed's gloo, TCP on the loopback interface. `store` is a path that no file
    has yet, the same on every rank; all ranks must construct theirs within `timeout_s`."""

    def __init__(self, rank: int, size: int, store: Path, timeout_s: float) -> None:
        self._size = size
        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=timeout_s)
        options._threads = 1
        # A group of its own rather than the process's default one, so that several engines can
        # live in one process.
        file_store = FileStore(str(store), size)
        file_store.set_timeout(timedelta(seconds=timeout_s))
        self._group = ProcessGroupGloo(file_store, rank, size, options)

    def gather(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self._size)]
        try:
            self._group.allgather([parts], [tensor]).wait()
        except RuntimeError as error:
            raise RankLost(f"a rank is gone: {error}.") from error
        return parts


class SharedMemoryExchange:
    """Through memory that all ranks map, with one byte through a pipe to each peer to say "mine is
    written". Far cheaper than a socket per message where ranks outnumber cores, and a rank that
    dies closes its pipes, which wakes the others.

    memory_fd: a file of `memory_bytes(size, capacity)` bytes.
    writers, readers: by peer, the ends of the pipes to and from it.
    capacity: most bytes of one rank's tensor; a multiple of 64.

    Memory has two sides that take turns. A rank writes a side again only after all have announced
    the gather in between, which they do once they are done reading this side.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        memory_fd: int,
        capacity: int,
        writers: Mapping[int, int],
        readers: Mapping[int, int],
    ) -> None:
        self._rank = rank
        self._capacity = capacity
        self._writers = tuple(writers.items())
        self._readers = tuple(readers.items())
        memory = mmap.mmap(memory_fd, self.memory_bytes(size, capacity))
        slots = torch.frombuffer(memory, dtype=torch.uint8).view(2, size, capacity)
        self._sides = tuple(tuple(side.unbind(0)) for side in slots.unbind(0))
        self._turn = 0

    @staticmethod
    def memory_bytes(size: int, capacity: int) -> int:
        return 2 * size * capacity

    def gather(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        num_bytes = tensor.numel() * tensor.element_size()
        assert num_bytes <= self._capacity, f"{num_bytes=} capacity={self._capacity}"
        slots = self._sides[self._turn]
        self._turn ^= 1
        parts = [slot[:num_bytes].view(tensor.dtype).view(tensor.shape) for slot in slots]
        parts[self._rank].copy_(tensor)
        self._meet()
        return parts

    def _meet(self) -> None:
        for peer, writer in self._writers:
            try:
                os.write(writer, b"\0")
            except BrokenPipeError:
                raise RankLost(f"rank {peer} is gone.") from None
        for peer, reader in self._readers:
            if not os.read(reader, 1):
                raise RankLost(f"rank {peer} is gone.")
