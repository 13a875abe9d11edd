"""`router` picks what transformers' router picks."""

import pytest
import torch
from beam_trt_plugins.router.reference import router as truth
from checkpoints import small_config
from transformers.models.beam.modeling_beam import BeamTopKRouter

op = torch.ops.beam_trt.router
NEAR_TIE = 1e-5
"""Scores closer than this may be ordered either way by two fp32 products."""

SHAPES = [(16, 4, 2, 4), (256, 8, 4, 8), (12, 1, 1, 5), (6, 3, 2, 4), (20, 2, 1, 1), (8, 4, 4, 8)]


def hf_router(experts: int, groups: int, open_groups: int, top_k: int) -> BeamTopKRouter:
    config = small_config(
        num_experts=experts, n_group=groups, topk_group=open_groups, num_experts_per_tok=top_k
    )
    router = BeamTopKRouter(config)
    generator = torch.Generator().manual_seed(experts)
    weight = torch.randn(experts, config.hidden_size, generator=generator) * 0.2
    router.weight = torch.nn.Parameter(weight, requires_grad=False)
    router.e_score_correction_bias = 0.1 * torch.randn(experts, generator=generator)
    return router


def is_near_tie(router: BeamTopKRouter, scores: torch.Tensor) -> torch.Tensor:
    """[n] bool: some two choices of a token, or of its groups, are as good as equal."""
    choice = scores + router.e_score_correction_bias
    groups = choice.view(choice.shape[0], router.num_group, -1).topk(2, dim=-1).values.sum(-1)
    gaps = [t.sort(-1).values.diff(dim=-1) for t in (choice, groups) if t.shape[1] > 1]
    return torch.cat(gaps, dim=-1).min(-1).values < NEAR_TIE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_same_experts_as_transformers(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    router = hf_router(*shape)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(20_000, 64, generator=generator).to(dtype)
    logits, weights, expert_idx = router(x)
    ours_idx, ours_weights = op(x, router.weight, router.e_score_correction_bias, *shape[1:])
    clear = ~is_near_tie(router, logits.sigmoid())
    assert clear.float().mean() > 0.5
    assert ours_idx.dtype == torch.int32
    assert torch.equal(ours_idx[clear].long(), expert_idx[clear])
    assert torch.allclose(ours_weights[clear], weights[clear], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_reference(shape: tuple[int, int, int, int]) -> None:
    router = hf_router(*shape)
    x = torch.randn(300, 64, generator=torch.Generator().manual_seed(2))
    args = (x, router.weight, router.e_score_correction_bias, *shape[1:])
    clear = ~is_near_tie(router, router(x)[0].sigmoid())
    (ours_idx, ours_weights), (idx, weights) = op(*args), truth(*args)
    assert torch.equal(ours_idx[clear], idx[clear])
    assert torch.allclose(ours_weights[clear], weights[clear], rtol=1e-5, atol=1e-6)


def test_saturated_scores_keep_their_weights_finite() -> None:
    """All chosen scores underflow to zero: the published 1e-20 keeps 0 / 0 away."""
    weight = torch.full((4, 8), -100.0)
    idx, weights = op(torch.ones(3, 8), weight, torch.tensor([0.0, 1.0, 2.0, 3.0]), 1, 1, 2)
    assert torch.equal(idx, torch.tensor([[3, 2]] * 3, dtype=torch.int32))
    assert torch.equal(weights, torch.zeros(3, 2))
