"""A session that runs no model: it checks every step against a KV cache made of plain dicts, and
its tokens follow from the sequence alone."""

import hashlib
from collections.abc import Callable, Sequence

from beam_trt.runtime.session import SampledToken, SamplingRow
from beam_trt.runtime.step_input import StepInput


def next_token(known: Sequence[int], vocab_size: int) -> int:
    """The scripted model: a token that depends on every token before it."""
    digest = hashlib.blake2b(repr(tuple(known)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % vocab_size


class FakeSession:
    """Writes (position, token) into slots as a model writes KV, and reads the whole context back
    through both block tables, so that a wrong slot, a block freed too early or given to two
    sequences shows as a wrong token or an error here."""

    def __init__(
        self,
        vocab_size: int,
        tokens_per_block: int,
        sliding_window: int,
        max_num_tokens: int,
        next_token: Callable[[Sequence[int], int], int | None] = next_token,
    ) -> None:
        self.vocab_size = vocab_size
        self.tokens_per_block = tokens_per_block
        self.sliding_window = sliding_window
        self.max_num_tokens = max_num_tokens
        self.next_token = next_token
        self.full: dict[int, tuple[int, int]] = {}
        self.sliding: dict[int, tuple[int, int]] = {}
        self.num_steps = 0
        self.tokens_of_steps: list[int] = []
        self.rows_of_steps: list[list[SamplingRow]] = []
        self.fail_at: int | None = None
        self.failure: Exception | None = None
        self.num_closed = 0

    def run(self, step: StepInput, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        self.num_steps += 1
        if self.num_steps == self.fail_at:
            raise RuntimeError("scripted failure")
        step = StepInput.unpack(step.packed.copy())  # what another rank would see
        num_tokens = len(step.token_ids)
        assert 0 < num_tokens <= self.max_num_tokens
        assert step.query_starts[0] == 0
        assert step.query_starts[-1] == num_tokens
        self.tokens_of_steps.append(num_tokens)
        self.rows_of_steps.append(list(rows))
        self._write(step)
        context_of_row = {}
        for request in range(len(step.context_lens)):
            first, last = step.query_starts[request], step.query_starts[request + 1] - 1
            assert step.positions[last] == step.context_lens[request] - 1
            known = self._read_full(step, request)
            for row in range(first, last + 1):
                self._check_window(step, request, int(step.positions[row]), known)
            context_of_row[int(last)] = known
        return [
            SampledToken(
                self.next_token(context_of_row[int(row)], self.vocab_size),
                -0.5 if sampling.params.logprobs else None,
            )
            for row, sampling in zip(step.logit_rows, rows, strict=True)
        ]

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        self.num_closed += 1

    def _write(self, step: StepInput) -> None:
        for cache, slots in ((self.full, step.full_slots), (self.sliding, step.sliding_slots)):
            assert len(set(slots.tolist())) == len(slots), "two tokens in one slot"
            for slot, position, token in zip(slots, step.positions, step.token_ids, strict=True):
                cache[int(slot)] = (int(position), int(token))

    def _slot(self, table: Sequence[int], position: int) -> int:
        block = int(table[position // self.tokens_per_block])
        assert block >= 0, f"position {position} was freed: {list(table)}"
        return block * self.tokens_per_block + position % self.tokens_per_block

    def _read_full(self, step: StepInput, request: int) -> list[int]:
        known = []
        for position in range(int(step.context_lens[request])):
            found, token = self.full[self._slot(step.full_table[request], position)]
            assert found == position, f"{found=} {position=}"
            known.append(token)
        return known

    def _check_window(
        self, step: StepInput, request: int, query: int, known: Sequence[int]
    ) -> None:
        for position in range(max(0, query - self.sliding_window + 1), query + 1):
            entry = self.sliding[self._slot(step.sliding_table[request], position)]
            assert entry == (position, known[position]), f"{entry=} {position=}"
