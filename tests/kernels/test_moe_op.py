"""`moe` and its quantized forms against the reference and transformers' experts."""

from functools import partial

import pytest
import torch
from beam_trt_plugins.moe.reference import moe as truth
from beam_trt_plugins.projection import activations, reference
from checkpoints import small_config
from reference.engine_weights import nvfp4_parts
from reference.op_cases import moe_case
from reference.tolerance import assert_earned
from transformers.models.beam.modeling_beam import BeamExperts

ops = torch.ops.beam_trt
TOKENS = [1, 2, 15, 16, 17, 100]


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("experts", "top_k"), [(8, 3), (16, 16), (4, 1), (70, 5)])
def test_moe(tokens: int, experts: int, top_k: int) -> None:
    case = moe_case(tokens, experts, top_k)
    expected = truth(**case, first_expert=0)
    assert_earned(ops.moe(*case.values(), 0), expected, expected, 1e-5, tokens)


@pytest.mark.parametrize("tokens", TOKENS)
def test_bf16_is_no_worse_than_eager_transformers(tokens: int) -> None:
    case = moe_case(tokens, dtype=torch.bfloat16)
    config = small_config(num_experts=8, hidden_size=48, moe_intermediate_size=32)
    config._experts_implementation = "eager"
    experts = BeamExperts(config)
    experts.gate_up_proj = torch.nn.Parameter(case["gate_up"], requires_grad=False)
    experts.down_proj = torch.nn.Parameter(case["down"], requires_grad=False)
    plain = experts(case["x"], case["expert_idx"].long(), case["expert_weights"])
    exact = {k: v.float() if v.is_floating_point() else v for k, v in case.items()}
    expected = truth(**exact, first_expert=0)
    assert_earned(ops.moe(*case.values(), 0), plain, expected, 1e-6, tokens)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_of_experts_add_up(tokens: int, ranks: int) -> None:
    case = moe_case(tokens)
    whole = ops.moe(*case.values(), 0)
    per_rank = 8 // ranks
    parts = []
    for first in range(0, 8, per_rank):
        mine = slice(first, first + per_rank)
        local = case | {"gate_up": case["gate_up"][mine], "down": case["down"][mine]}
        parts.append(ops.moe(*local.values(), first))
    assert torch.allclose(torch.stack(parts).sum(0), whole, atol=1e-5)


@pytest.mark.parametrize("tokens", [3, 40])
def test_a_rank_whose_experts_nobody_chose_adds_exact_zeros(tokens: int) -> None:
    case = moe_case(tokens)
    assert torch.equal(ops.moe(*case.values(), 8), torch.zeros(tokens, 48))


@pytest.mark.parametrize("tokens", TOKENS)
def test_moe_fp8(tokens: int) -> None:
    case = moe_case(tokens, dtype=torch.bfloat16)
    quantized = []
    for name in ("gate_up", "down"):
        scale = case[name].float().abs().amax(-1) / 448
        quantized += [(case[name].float() / scale[..., None]).to(torch.float8_e4m3fn), scale]
    dequantized = {
        name: reference.dequantize_fp8(*quantized[i : i + 2])
        for name, i in (("gate_up", 0), ("down", 2))
    }
    per_token = activations.fp8_per_token
    expected = truth(
        **(case | dequantized),
        first_expert=0,
        quantize_x=per_token,
        quantize_inner=per_token,
        dtype=torch.bfloat16,
    )
    out = ops.moe_fp8(case["x"], *quantized, case["expert_idx"], case["expert_weights"], 0)
    # An fp32 sum in another order may cross a bf16, then an E4M3 rounding boundary.
    assert (out - expected).abs().mean() < 2e-3 * expected.abs().mean()
    assert_earned(out, expected, expected, 0.03, tokens)


@pytest.mark.parametrize("same_input_scale", [True, False])
@pytest.mark.parametrize("tokens", TOKENS)
def test_moe_nvfp4(tokens: int, same_input_scale: bool) -> None:
    case = moe_case(tokens, dtype=torch.bfloat16)
    scales = torch.full((8,), 4 / (6 * 448))
    if not same_input_scale:
        scales = scales * torch.linspace(1, 2, 8)
    quantized: dict[str, list[torch.Tensor]] = {}
    for name in ("gate_up", "down"):
        scale_2 = case[name].float().abs().amax((1, 2)) / (6 * 448)
        parts = [nvfp4_parts(w, s) for w, s in zip(case[name], scale_2, strict=True)]
        block_scales = torch.stack([p[1].view(torch.uint8) for p in parts])
        quantized[name] = [
            torch.stack([p[0] for p in parts]),
            block_scales.view(torch.float8_e4m3fn),
            scale_2,
            scales,
        ]
    expected = torch.zeros(tokens, 48)
    for expert in range(8):  # one expert at a time, each with its own input scale
        quantize = partial(activations.nvfp4, input_scale=scales[expert])
        local = {
            name: reference.dequantize_nvfp4(*parts[:3])[expert : expert + 1]
            for name, parts in quantized.items()
        }
        expected += truth(
            **(case | local),
            first_expert=expert,
            quantize_x=quantize,
            quantize_inner=quantize,
            dtype=torch.bfloat16,
        )
    args = (*quantized["gate_up"], *quantized["down"], case["expert_idx"], case["expert_weights"])
    out = ops.moe_nvfp4(case["x"], *args, 0)
    assert (out - expected).abs().mean() < 5e-3 * expected.abs().mean()
    assert_earned(out, expected, expected, 0.1, tokens)
