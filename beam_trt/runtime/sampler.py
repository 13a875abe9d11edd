"""Turns rows of logits into tokens. Knows nothing about requests beyond a row's parameters.

A row's token depends on its logits, its parameters, its seed and its position alone: every row is
cut and drawn by itself, in FP32 with FP64 sums, and its random number is a function of (seed,
position). So a seeded request gives the same tokens alone and in a crowd.
"""

from collections.abc import Sequence

import torch

from beam_trt.runtime.philox import uniform
from beam_trt.runtime.session import SampledToken, SamplingRow


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
    """One token for each row of `logits` [num_rows, vocab_size] fp32, which stay unmodified."""
    assert logits.shape[0] == len(rows), f"{logits.shape=} {len(rows)=}"
    if not rows:
        return []
    allowed = _ban(logits, rows)
    best, greedy_ids = allowed.max(dim=-1)
    # A NaN anywhere in a row is its maximum.
    is_finite = best.isfinite().tolist()
    token_ids = greedy_ids.tolist()
    for idx, row in enumerate(rows):
        if not row.params.is_greedy and is_finite[idx]:
            token_ids[idx] = _draw(allowed[idx], row)
    return [
        SampledToken(
            token_id if finite else None,
            _logprob(logits[idx], token_id) if finite and row.params.logprobs else None,
        )
        for idx, (row, token_id, finite) in enumerate(zip(rows, token_ids, is_finite, strict=True))
    ]


def _ban(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    if not any(row.banned for row in rows):
        return logits
    allowed = logits.clone()
    for idx, row in enumerate(rows):
        allowed[idx, list(row.banned)] = -torch.inf
    return allowed


def _draw(logits: torch.Tensor, row: SamplingRow) -> int:
    """Temperature, then top-k, then top-p, then the inverse of the cumulative distribution at the
    row's random number. `logits` [vocab_size] fp32."""
    params, vocab_size = row.params, logits.shape[0]
    # The maximum goes first, so that no temperature overflows.
    scaled = (logits - logits.max()) / params.temperature
    ids: torch.Tensor | None = None
    if params.top_k is not None and params.top_k < vocab_size:
        scaled, ids = scaled.topk(params.top_k)
    elif params.top_p < 1.0:
        scaled, ids = scaled.sort(descending=True, stable=True)
    # FP64: over a large vocabulary an FP32 running sum would lose the small probabilities.
    cumulative = scaled.double().exp().cumsum(0)
    total = cumulative[-1].item()
    if params.top_p < 1.0:
        # The smallest set that reaches top_p: all before it, and the one that crosses it.
        num_kept = int(torch.searchsorted(cumulative, params.top_p * total).item()) + 1
        cumulative = cumulative[:num_kept]
        total = cumulative[-1].item()
    target = uniform(row.seed, row.position) * total
    at = int(torch.searchsorted(cumulative, target, right=True).item())
    at = min(at, cumulative.shape[0] - 1)  # a product that rounded up to the total
    return at if ids is None else int(ids[at].item())


def _logprob(logits: torch.Tensor, token_id: int) -> float:
    wide = logits.double()
    wide = wide - wide.max()
    # cumsum adds in one order whatever the number of threads
    return float((wide[token_id] - wide.exp().cumsum(0)[-1].log()).item())
