"""What the model needs from other ranks; the processes behind it belong to `runtime.workers`."""

from typing import Protocol

import torch


class Communicator(Protocol):
    """Collectives over the `size` ranks of one engine; every rank calls each in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum of an fp32 tensor over ranks, the same bits on every rank; may work in place.

        Partial sums stay fp32 so that the one rounding to the model dtype happens after them."""
        ...

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        """Each rank's [..., n] side by side in rank order: [..., size * n]."""
        ...


class SingleRank:
    """The communicator of an engine with one rank: nothing to add, nothing to gather."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor
