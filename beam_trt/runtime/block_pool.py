"""The blocks of one KV lifetime: which are free and how many owners each of the others has.

Integers only. Knows nothing about sequences, tokens or what a block holds.
"""

from collections import Counter
from collections.abc import Iterable


class BlockPool:
    """`num_blocks` blocks, each free or held by one owner, or by several that share it.

    Freed blocks are handed out again last in, first out, while their memory may still be cached.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0, f"{num_blocks=}"
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._ref_counts = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks with at least one owner; one shared by several counts once."""
        return self.num_blocks - len(self._free)

    def allocate(self) -> int:
        """A free block, now with one owner. The caller has made sure that there is one."""
        assert self._free, f"no free block of {self.num_blocks}"
        block = self._free.pop()
        self._ref_counts[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add an owner to a used block."""
        assert self._ref_counts[block] > 0, f"block {block} is free and cannot be shared"
        self._ref_counts[block] += 1

    def release(self, block: int) -> None:
        """Take one owner away; the block is free when none is left."""
        assert self._ref_counts[block] > 0, f"block {block} is already free"
        self._ref_counts[block] -= 1
        if not self._ref_counts[block]:
            self._free.append(block)

    def check_integrity(self, owned: Iterable[int]) -> None:
        """Assert that the pool and its owners agree. `owned` has every block once for each owner.
        Costs O(num_blocks): for tests and debugging."""
        held = Counter(owned)
        counted = {block: n for block, n in enumerate(self._ref_counts) if n}
        assert counted == dict(held), f"pool counts owners {counted}, owners hold {dict(held)}"
        free = set(self._free)
        assert len(free) == len(self._free), f"a block is free twice: {sorted(self._free)}"
        both = free & counted.keys()
        assert not both, f"blocks both free and used: {sorted(both)}"
        assert len(free) + len(counted) == self.num_blocks, (
            f"{len(free)} free + {len(counted)} used != {self.num_blocks} blocks"
        )
