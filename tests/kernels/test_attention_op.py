"""`hybrid_attention` against its fp32 reference, on ragged batches with poisoned memory."""

import random
from typing import Any

import pytest
import torch
from beam_trt_plugins.hybrid_attention.reference import hybrid_attention as truth
from reference.op_cases import attention_case
from reference.tolerance import assert_earned

op = torch.ops.beam_trt.hybrid_attention

RAGGED = [
    ([1], [1]),
    ([64], [64]),
    ([65], [1]),
    ([130], [130]),
    ([200, 63, 64, 65, 1], [1, 1, 1, 1, 1]),
    ([40, 300, 129, 17], [40, 1, 65, 1]),
]


def plain(case: dict[str, Any]) -> torch.Tensor:
    """Each query alone through torch's own attention in the case's dtype."""
    q, kv, window = case["q"], case["kv"], case["window"]
    group = q.shape[1] // kv.shape[2]
    out = torch.empty_like(q)
    starts = case["query_starts"].tolist()
    for request, context_len in enumerate(case["context_lens"].tolist()):
        for token in range(starts[request], starts[request + 1]):
            position = context_len - (starts[request + 1] - token)
            first = max(0, position - window + 1) if window else 0
            seen = torch.arange(first, position + 1)
            block = case["block_table"][request, seen // kv.shape[3]].long()
            memory = kv[block, :, :, seen % kv.shape[3]].repeat_interleave(group, dim=2)
            keys, values = memory.permute(1, 2, 0, 3)
            out[token] = torch.nn.functional.scaled_dot_product_attention(
                q[token, :, None], keys, values, scale=case["scale"]
            )[:, 0]
    gate = torch.sigmoid(case["gate"].view_as(out) + case["gate_bias"][:, None])
    return (out * gate).flatten(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [0, 2, 64, 100])
@pytest.mark.parametrize(("context_lens", "query_lens"), RAGGED)
def test_ragged_batches(
    context_lens: list[int], query_lens: list[int], window: int, dtype: torch.dtype
) -> None:
    case = attention_case(context_lens, query_lens, window, dtype=dtype)
    assert_earned(op(*case.values()), plain(case), truth(**case), 1e-5, (context_lens, window))


@pytest.mark.parametrize("tokens_per_block", [16, 32, 64, 128])
@pytest.mark.parametrize("seed", range(6))
def test_random_shapes(seed: int, tokens_per_block: int) -> None:
    rng = random.Random(seed)
    kv_heads = rng.choice([1, 2, 3])
    context_lens = [rng.randint(1, 220) for _ in range(rng.randint(1, 5))]
    query_lens = [rng.choice([1, rng.randint(1, n)]) for n in context_lens]
    case = attention_case(
        context_lens,
        query_lens,
        window=rng.choice([0, 2, 3, 33, 64, 65, 150, 500]),
        heads=kv_heads * rng.choice([1, 2, 3, 5, 6, 20]),
        kv_heads=kv_heads,
        dim=rng.choice([2, 6, 10, 16, 32]),
        tokens_per_block=tokens_per_block,
        seed=seed,
    )
    assert_earned(op(*case.values()), plain(case), truth(**case), 1e-5, case["q"].shape)


def test_window_at_a_million_tokens() -> None:
    case = attention_case([1_000_001, 1_048_576], [3, 1], window=130)
    assert_earned(op(*case.values()), plain(case), truth(**case), 1e-5, "1M")


def test_long_contexts_are_split_into_groups() -> None:
    """More tile pairs than are computed at once, from several requests."""
    case = attention_case([900, 700, 2600], [150, 1, 90], 0, heads=6, kv_heads=1, dim=8)
    assert_earned(op(*case.values()), plain(case), truth(**case), 1e-5, "groups")


def test_reused_buffers_are_noticed() -> None:
    """A runtime may overwrite the same tensors with the next step's numbers."""
    case = attention_case([100, 90], [1, 1], 0)
    first = op(*case.values())
    case["context_lens"] -= torch.tensor([30, 20], dtype=torch.int32)
    second = op(*case.values())
    assert not torch.allclose(first, second)
    assert_earned(second, plain(case), truth(**case), 1e-5, "shrunk")
    case["block_table"][:] = case["block_table"].flip(0)
    assert_earned(op(*case.values()), plain(case), truth(**case), 1e-5, "swapped")


def test_a_visible_block_that_is_absent_is_refused() -> None:
    case = attention_case([100], [1], 0)
    case["block_table"][0, 0] = -1
    with pytest.raises(AssertionError, match="the table lacks"):
        op(*case.values())
