"""One step's work on one rank, as tensors: which tokens, at which positions, over which KV blocks.

Knows nothing about requests, text or sampling; the scheduler's integers become these tensors in
`runtime.session`. Tokens of one request are contiguous, in order of position; requests that are in
the middle of their context (chunked prefill) and requests that generate one token mix freely.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class KvIndex:
    """Where one lifetime (full or sliding) keeps its KV for this step.

    block_table: [num_requests, max_blocks] int32; entry `p // tokens_per_block` is the block of
        position p, -1 where it is absent or was freed behind the window. Never read at -1.
    slots: [num_tokens] int64, `block * tokens_per_block + offset`: where each token of the step is
        written before attention reads it.
    """

    block_table: torch.Tensor
    slots: torch.Tensor


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Everything one forward reads besides weights and KV.

    token_ids: [num_tokens] int64
    positions: [num_tokens] int64, counted from 0 in each request
    query_starts: [num_requests + 1] int32; tokens query_starts[r] to query_starts[r + 1] belong to
        request r and are its last ones: the last has position context_lens[r] - 1
    context_lens: [num_requests] int32, tokens of each request in KV after this step
    full, sliding: KV of the two lifetimes
    logit_rows: [num_logits] int64, indices of the tokens whose logits are wanted
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    query_starts: torch.Tensor
    context_lens: torch.Tensor
    full: KvIndex
    sliding: KvIndex
    logit_rows: torch.Tensor

    @property
    def num_tokens(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def num_requests(self) -> int:
        return int(self.context_lens.shape[0])
