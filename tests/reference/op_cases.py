"""Random inputs for the plugin ops."""

import random
from typing import Any

import torch


def attention_case(
    context_lens: list[int],
    query_lens: list[int],
    window: int,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 16,
    tokens_per_block: int = 64,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> dict[str, Any]:
    """Arguments of `hybrid_attention`: scattered blocks, NaN in every slot that no query of the
    step may read, and -1 for blocks that are wholly behind the window."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    width = max(-(-n // tokens_per_block) for n in context_lens)
    table = torch.full((len(context_lens), width), -1, dtype=torch.int32)
    needed = []
    for request, (context_len, query_len) in enumerate(zip(context_lens, query_lens, strict=True)):
        oldest = max(0, context_len - query_len - window + 1) if window else 0
        for column in range(oldest // tokens_per_block, -(-context_len // tokens_per_block)):
            needed.append((request, column, oldest, context_len))
    blocks = random.Random(seed).sample(range(len(needed) + 3), len(needed))
    kv = torch.full((len(needed) + 3, 2, kv_heads, tokens_per_block, dim), torch.nan, dtype=dtype)
    for block, (request, column, oldest, context_len) in zip(blocks, needed, strict=True):
        table[request, column] = block
        start = max(oldest - column * tokens_per_block, 0)
        stop = min(context_len - column * tokens_per_block, tokens_per_block)
        kv[block, :, :, start:stop] = noise(2, kv_heads, stop - start, dim)
    num_tokens = sum(query_lens)
    starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    return {
        "q": noise(num_tokens, heads, dim),
        # A view into a wider matrix, as the packed projection gives it.
        "gate": noise(num_tokens, heads * dim + 5)[:, 5:],
        "gate_bias": noise(heads),
        "kv": kv,
        "block_table": table,
        "query_starts": starts,
        "context_lens": torch.tensor(context_lens, dtype=torch.int32),
        "window": window,
        "scale": dim**-0.5,
    }


def moe_case(
    num_tokens: int,
    experts: int = 8,
    top_k: int = 3,
    hidden: int = 48,
    inner: int = 32,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Arguments of `moe` for all experts on one rank."""
    generator = torch.Generator().manual_seed(seed)
    choice = torch.rand(num_tokens, experts, generator=generator).argsort(-1)[:, :top_k]
    weights = torch.rand(num_tokens, top_k, generator=generator) + 0.1
    return {
        "x": torch.randn(num_tokens, hidden, generator=generator).to(dtype),
        "gate_up": _matrix(generator, experts, 2 * inner, hidden).to(dtype),
        "down": _matrix(generator, experts, hidden, inner).to(dtype),
        "expert_idx": choice.int(),
        "expert_weights": weights / weights.sum(-1, keepdim=True),
    }


def _matrix(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator) * shape[-1] ** -0.5
