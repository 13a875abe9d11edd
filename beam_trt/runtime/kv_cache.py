"""Which KV blocks each sequence holds, in the two lifetimes of a Beam model.

Full-attention layers keep every token, so their blocks live as long as the sequence. Sliding layers
see the query itself and the `sliding_window - 1` tokens before it, so their blocks are freed as the
window passes. Integers only: knows nothing about tensors, time or how requests are ordered.

A sequence is admitted with its worst case reserved in both lifetimes, so that it can always go on
by at least one token a step and never has to be evicted. Blocks are taken from the pools only when
tokens need them; a context chunk longer than one token also uses blocks nobody has reserved, and
is made shorter where there are none.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from beam_trt.runtime.block_pool import BlockPool


@dataclass(slots=True)
class BlockTable:
    """One sequence's blocks in one lifetime, by absolute position: `blocks[p // tokens_per_block]`
    holds position p, -1 once freed. Entries before `first_held` are freed."""

    reserved: int
    blocks: list[int] = field(default_factory=list)
    first_held: int = 0

    @property
    def num_held(self) -> int:
        return len(self.blocks) - self.first_held


class Lifetime:
    """One pool and the tables of the sequences that live in it. `window` tokens, the query
    included, stay visible; None keeps all."""

    def __init__(self, num_blocks: int, tokens_per_block: int, window: int | None) -> None:
        self.pool = BlockPool(num_blocks)
        self.tables: dict[str, BlockTable] = {}
        self.window = window
        self._tokens_per_block = tokens_per_block
        self._num_unclaimed = 0

    @property
    def num_spare(self) -> int:
        """Free blocks that no admitted sequence has reserved."""
        return self.pool.num_free - self._num_unclaimed

    def worst_case(self, num_tokens: int) -> int:
        """Blocks that a sequence of `num_tokens` holds at most when it goes one token a step."""
        whole = -(-num_tokens // self._tokens_per_block)
        if self.window is None:
            return whole
        # A window of w tokens touches most blocks when it starts on a block's last token.
        across = (self.window + self._tokens_per_block - 2) // self._tokens_per_block + 1
        return min(whole, across)

    def admit(self, sequence_id: str, num_tokens: int) -> None:
        assert sequence_id not in self.tables, sequence_id
        reserved = self.worst_case(num_tokens)
        assert reserved <= self.num_spare, f"{sequence_id}: {reserved=} {self.num_spare=}"
        self.tables[sequence_id] = BlockTable(reserved)
        self._num_unclaimed += reserved

    def most_tokens(self, sequence_id: str, num_cached: int) -> int:
        """Tokens that `extend` could add now to a sequence that has `num_cached`."""
        table = self.tables[sequence_id]
        available = max(0, table.reserved - table.num_held) + self.num_spare
        return (len(table.blocks) + available) * self._tokens_per_block - num_cached

    def extend(self, sequence_id: str, num_tokens: int) -> None:
        """Hold blocks for the first `num_tokens` of the sequence, freed ones aside."""
        table = self.tables[sequence_id]
        if len(table.blocks) * self._tokens_per_block >= num_tokens:
            return
        unclaimed = self._unclaimed(table)
        while len(table.blocks) * self._tokens_per_block < num_tokens:
            table.blocks.append(self.pool.allocate())
        self._num_unclaimed += self._unclaimed(table) - unclaimed
        assert self.num_spare >= 0, f"{sequence_id}: took reserved blocks, {self.num_spare=}"

    def trim(self, sequence_id: str, num_cached: int) -> None:
        """Free the blocks that no query at position `num_cached` or later can see."""
        if self.window is None:
            return
        table = self.tables[sequence_id]
        first_visible = num_cached - self.window + 1
        first_held = min(first_visible // self._tokens_per_block, len(table.blocks))
        if first_held <= table.first_held:
            return
        unclaimed = self._unclaimed(table)
        for idx in range(table.first_held, first_held):
            self.pool.release(table.blocks[idx])
            table.blocks[idx] = -1
        table.first_held = first_held
        self._num_unclaimed += self._unclaimed(table) - unclaimed

    def release(self, sequence_id: str) -> None:
        table = self.tables.pop(sequence_id)
        self._num_unclaimed -= self._unclaimed(table)
        for block in table.blocks[table.first_held :]:
            self.pool.release(block)

    def check_integrity(self) -> None:
        """Assert the pool's invariants and that reservations add up."""
        self.pool.check_integrity(self._held())
        unclaimed = sum(self._unclaimed(table) for table in self.tables.values())
        assert unclaimed == self._num_unclaimed, f"{unclaimed=} counted {self._num_unclaimed}"
        assert self.num_spare >= 0, f"{self.pool.num_free=} < {unclaimed=} reserved"

    def _held(self) -> Iterator[int]:
        for table in self.tables.values():
            yield from table.blocks[table.first_held :]

    @staticmethod
    def _unclaimed(table: BlockTable) -> int:
        return max(0, table.reserved - table.num_held)


class KvCacheManager:
    """Admits, extends, trims and releases sequences in both lifetimes at once. `sliding_window` is
    the model's: tokens a sliding query sees, itself included."""

    def __init__(
        self,
        num_full_blocks: int,
        num_sliding_blocks: int,
        tokens_per_block: int,
        sliding_window: int,
    ) -> None:
        self.tokens_per_block = tokens_per_block
        self.full = Lifetime(num_full_blocks, tokens_per_block, None)
        self.sliding = Lifetime(num_sliding_blocks, tokens_per_block, sliding_window)
        self._lifetimes = (self.full, self.sliding)

    @property
    def max_tokens_per_sequence(self) -> int:
        """Tokens that one sequence alone in the cache could hold; 0 where not even one window fits
        the sliding pool."""
        most = self.full.pool.num_blocks * self.tokens_per_block
        if self.sliding.worst_case(most) <= self.sliding.pool.num_blocks:
            return most
        return min(most, self.sliding.pool.num_blocks * self.tokens_per_block)

    def can_ever_fit(self, num_tokens: int) -> bool:
        """Whether a sequence of `num_tokens` fits when it has the cache to itself."""
        return all(life.worst_case(num_tokens) <= life.pool.num_blocks for life in self._lifetimes)

    def can_admit(self, num_tokens: int) -> bool:
        """Whether a sequence of `num_tokens` fits now, beside the worst case of the others."""
        return all(life.worst_case(num_tokens) <= life.num_spare for life in self._lifetimes)

    def admit(self, sequence_id: str, num_tokens: int) -> None:
        """Reserve the worst case of a sequence of `num_tokens` tokens of KV, prompt and output."""
        for life in self._lifetimes:
            life.admit(sequence_id, num_tokens)

    def most_tokens(self, sequence_id: str, num_cached: int) -> int:
        """Tokens by which a sequence with `num_cached` in the cache can be extended now; never
        less than one before its admitted length is reached."""
        return min(life.most_tokens(sequence_id, num_cached) for life in self._lifetimes)

    def extend(self, sequence_id: str, num_tokens: int) -> None:
        """Take blocks so that the first `num_tokens` tokens of the sequence have a place."""
        for life in self._lifetimes:
            life.extend(sequence_id, num_tokens)

    def trim(self, sequence_id: str, num_cached: int) -> None:
        """The step is done and `num_cached` tokens are in the cache: free what no later query of
        the sequence can see."""
        for life in self._lifetimes:
            life.trim(sequence_id, num_cached)

    def release(self, sequence_id: str) -> None:
        """The sequence ended: free all its blocks and its reservation."""
        for life in self._lifetimes:
            life.release(sequence_id)

    def check_integrity(self) -> None:
        """Assert every invariant of both lifetimes; for tests and debugging."""
        for life in self._lifetimes:
            life.check_integrity()
