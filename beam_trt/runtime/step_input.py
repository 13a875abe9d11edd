"""One step's work as integers in one buffer: filled once, read by every rank without copying.

Knows layouts and block tables, nothing about tensors, sampling or how the buffer travels.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from beam_trt.runtime.kv_cache import BlockTable, KvCacheManager
from beam_trt.runtime.scheduler import StepPlan

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
_HEADER = 5  # int64 counts in front: tokens, requests, logits, and both tables' widths


@dataclass(frozen=True, slots=True)
class StepInput:
    """Views of one packed buffer; fields and dtypes are those of `model.batch.StepBatch`, whose
    `KvIndex` is here a `{full,sliding}_table` and `{full,sliding}_slots`."""

    packed: npt.NDArray[np.uint8]
    token_ids: Int64
    positions: Int64
    full_slots: Int64
    sliding_slots: Int64
    logit_rows: Int64
    query_starts: Int32
    context_lens: Int32
    full_table: Int32
    sliding_table: Int32

    @classmethod
    def layout(
        cls,
        buffer: npt.NDArray[np.uint8],
        num_tokens: int,
        num_requests: int,
        num_logits: int,
        widths: tuple[int, int],
    ) -> "StepInput":
        """Views for these counts at the front of `buffer`, whose header is written."""
        counts = (num_tokens, num_requests, num_logits, *widths)
        buffer[: 8 * _HEADER].view(np.int64)[:] = counts
        return cls._views(buffer, counts)

    @classmethod
    def unpack(cls, buffer: npt.NDArray[np.uint8]) -> "StepInput":
        """Views of a buffer that another rank packed."""
        return cls._views(buffer, tuple(buffer[: 8 * _HEADER].view(np.int64).tolist()))

    @classmethod
    def _views(cls, buffer: npt.NDArray[np.uint8], counts: tuple[int, ...]) -> "StepInput":
        num_tokens, num_requests, num_logits, full_width, sliding_width = counts
        at = 8 * _HEADER
        views: list[Any] = []
        # int64 first, so that everything is aligned
        for dtype, count in (
            *((np.int64, num_tokens),) * 4,
            (np.int64, num_logits),
            (np.int32, num_requests + 1),
            (np.int32, num_requests),
            (np.int32, num_requests * full_width),
            (np.int32, num_requests * sliding_width),
        ):
            end = at + count * np.dtype(dtype).itemsize
            views.append(buffer[at:end].view(dtype))
            at = end
        views[-2] = views[-2].reshape(num_requests, full_width)
        views[-1] = views[-1].reshape(num_requests, sliding_width)
        return cls(buffer[:at], *views)

    @staticmethod
    def max_bytes(max_num_tokens: int, max_batch_size: int, max_blocks: int) -> int:
        """Size of a buffer for any step within these limits."""
        int64s = _HEADER + 4 * max_num_tokens + max_batch_size
        int32s = 2 * max_batch_size + 1 + 2 * max_batch_size * max_blocks
        return 8 * int64s + 4 * int32s


class _Tables:
    """Block tables of one lifetime as rows of one matrix, brought up to date by what changed."""

    def __init__(self, max_batch_size: int, max_blocks: int) -> None:
        self.rows: Int32 = np.full((max_batch_size, max_blocks), -1, dtype=np.int32)
        self._seen = [(0, 0)] * max_batch_size  # of each row: blocks copied, blocks cleared

    def update(self, row: int, table: BlockTable) -> int:
        """Copy new blocks, clear freed ones; the number of entries in use."""
        copied, cleared = self._seen[row]
        length, first_held = len(table.blocks), table.first_held
        if (copied, cleared) != (length, first_held):
            if copied < length:
                self.rows[row, copied:length] = table.blocks[copied:]
            self.rows[row, cleared:first_held] = -1
            self._seen[row] = (length, first_held)
        return length

    def clear(self, row: int) -> None:
        self.rows[row, : self._seen[row][0]] = -1
        self._seen[row] = (0, 0)


class InputBuffers:
    """Turns plans into `StepInput`s. Keeps one row of each block table for every running request,
    so that a step costs what changed, not what is cached. A `StepInput` is valid until the next
    `fill`."""

    def __init__(
        self, max_batch_size: int, max_num_tokens: int, max_seq_len: int, tokens_per_block: int
    ) -> None:
        self._tokens_per_block = tokens_per_block
        max_blocks = -(-max_seq_len // tokens_per_block)
        self._buffer = np.zeros(
            StepInput.max_bytes(max_num_tokens, max_batch_size, max_blocks), dtype=np.uint8
        )
        self._full = _Tables(max_batch_size, max_blocks)
        self._sliding = _Tables(max_batch_size, max_blocks)
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(max_batch_size - 1, -1, -1))

    def fill(
        self, plan: StepPlan, token_ids: dict[str, list[int]], kv_cache: KvCacheManager
    ) -> StepInput:
        """`token_ids` has each planned request's known tokens, prompt and generated."""
        rows, widths = self._update_tables(plan, kv_cache)
        lengths = np.array([scheduled.num_tokens for scheduled in plan.requests], dtype=np.int64)
        starts = np.array([scheduled.start for scheduled in plan.requests], dtype=np.int64)
        ends = lengths.cumsum()
        num_tokens = int(ends[-1])
        sampled = [idx for idx, scheduled in enumerate(plan.requests) if scheduled.samples]
        step = StepInput.layout(self._buffer, num_tokens, len(plan.requests), len(sampled), widths)
        at = 0
        for scheduled in plan.requests:
            end = at + scheduled.num_tokens
            known = token_ids[scheduled.request_id]
            step.token_ids[at:end] = known[scheduled.start : scheduled.start + scheduled.num_tokens]
            at = end
        step.query_starts[0] = 0
        step.query_starts[1:] = ends
        step.context_lens[:] = starts + lengths
        step.logit_rows[:] = ends[sampled] - 1
        # position of token t of request r = t + (start of r - index of r's first token)
        step.positions[:] = np.arange(num_tokens) + (starts - ends + lengths).repeat(lengths)
        blocks, offsets = np.divmod(step.positions, self._tokens_per_block)
        token_rows = np.array(rows).repeat(lengths)
        for slots, table, tables in (
            (step.full_slots, step.full_table, self._full.rows),
            (step.sliding_slots, step.sliding_table, self._sliding.rows),
        ):
            slots[:] = tables[token_rows, blocks]
            slots *= self._tokens_per_block
            slots += offsets
            table[:] = tables[rows, : table.shape[1]]
        return step

    def release(self, request_id: str) -> None:
        """The request ended; one that never ran is fine."""
        row = self._row_of.pop(request_id, None)
        if row is not None:
            self._full.clear(row)
            self._sliding.clear(row)
            self._free_rows.append(row)

    def _update_tables(
        self, plan: StepPlan, kv_cache: KvCacheManager
    ) -> tuple[list[int], tuple[int, int]]:
        rows, full_width, sliding_width = [], 0, 0
        for scheduled in plan.requests:
            request_id = scheduled.request_id
            row = self._row_of.get(request_id)
            if row is None:
                row = self._row_of[request_id] = self._free_rows.pop()
            rows.append(row)
            full = self._full.update(row, kv_cache.full.tables[request_id])
            sliding = self._sliding.update(row, kv_cache.sliding.tables[request_id])
            full_width, sliding_width = max(full_width, full), max(sliding_width, sliding)
        return rows, (full_width, sliding_width)
