"""Norm boundary, query-key norms, RoPE, SwiGLU, embedding: in bf16 the very bits of transformers'
own modules, in fp32 the reference."""

import pytest
import torch
from beam_trt_plugins.embedding import reference as embedding_reference
from beam_trt_plugins.logits import reference as logits_reference
from beam_trt_plugins.qk_norm_rope import reference as rope_reference
from beam_trt_plugins.residual_norm import reference as norm_reference
from beam_trt_plugins.swiglu import reference as swiglu_reference
from checkpoints import small_config
from reference.tolerance import assert_earned
from transformers.models.beam.modeling_beam import (
    BeamMLP,
    BeamRMSNorm,
    BeamRotaryEmbedding,
    apply_rotary_pos_emb,
    compute_attention_scaling,
    depth_scaled_residual_add,
)

ops = torch.ops.beam_trt
DTYPES = [torch.float32, torch.bfloat16]
EPS = 1e-6


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def hf_norm(weight: torch.Tensor) -> BeamRMSNorm:
    norm = BeamRMSNorm(weight.shape[0], EPS)
    norm.weight = torch.nn.Parameter(weight, requires_grad=False)
    return norm


@pytest.mark.parametrize("rows", [1, 7, 16, 33])
@pytest.mark.parametrize("hidden", [5, 48, 128, 640])
@pytest.mark.parametrize(("add_idx", "scale"), [(2, 1.0), (3, 2.5), (105, 2.5)])
def test_norm_boundary(rows: int, hidden: int, add_idx: int, scale: float) -> None:
    branch, residual = noise(rows, hidden), 3 * noise(rows, hidden, seed=1)
    post, after = 1 + 0.2 * noise(hidden, seed=2), 1 + 0.2 * noise(hidden, seed=3)
    args = (post, after, EPS, add_idx, scale)
    truth = norm_reference.norm_boundary(branch, residual, *args)
    for ours, expected in zip(ops.norm_boundary(branch, residual, *args), truth, strict=True):
        assert_earned(ours, expected, expected, 1e-5, hidden)

    residual, post, after = (t.bfloat16() for t in (residual, post, after))
    scaled = branch.bfloat16() * scale if scale != 1.0 else branch.bfloat16()
    added = depth_scaled_residual_add(hf_norm(post)(scaled), residual, add_idx)
    ours = ops.norm_boundary(branch, residual, post, after, EPS, add_idx, scale)
    assert torch.equal(ours[0], added)
    assert torch.equal(ours[1], hf_norm(after)(added))
    rounded = norm_reference.norm_boundary(
        branch, residual, post, after, EPS, add_idx, scale, torch.bfloat16
    )
    assert torch.equal(ours[0], rounded[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype: torch.dtype) -> None:
    x, weight = noise(19, 48, dtype=dtype), noise(48, seed=1, dtype=dtype)
    assert torch.equal(ops.rms_norm(x, weight, EPS), hf_norm(weight)(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 16), (3, 1, 10), (6, 6, 2)])
def test_qk_norm_rope_write(
    heads: int, kv_heads: int, dim: int, is_full: bool, dtype: torch.dtype
) -> None:
    tokens, tokens_per_block = 21, 16
    qkvg = noise(tokens, (2 * heads + 2 * kv_heads) * dim, dtype=dtype)
    q_norm, k_norm = (1 + noise(dim, seed=s, dtype=dtype) for s in (1, 2))
    positions = torch.tensor([0, 1, 2, 2047, 8191, 1_048_575, *range(40, 55)])
    config = small_config(head_dim=dim)
    rotary = BeamRotaryEmbedding(config)
    cos_sin, query_scale = ops.position_terms(positions, rotary.sliding_attention_inv_freq)
    kv = torch.full((4, 2, kv_heads, tokens_per_block, dim), torch.nan, dtype=dtype)
    slots = torch.randperm(64, generator=torch.Generator().manual_seed(0))[:tokens]
    terms = (None, query_scale) if is_full else (cos_sin, None)
    q = ops.qk_norm_rope_write(qkvg, q_norm, k_norm, *terms, kv, slots, heads, kv_heads, EPS)

    parts = qkvg.view(1, tokens, -1, dim).split([heads, kv_heads, kv_heads, heads], dim=2)
    hf_q, hf_k = (hf_norm(w)(p).transpose(1, 2) for w, p in zip((q_norm, k_norm), parts))  # noqa: B905
    if is_full:
        hf_q = (hf_q.float() * compute_attention_scaling(positions[None])).to(dtype)
    else:
        cos, sin = rotary(qkvg, positions[None], "sliding_attention")
        hf_q, hf_k = apply_rotary_pos_emb(hf_q, hf_k, cos, sin)
    assert torch.equal(q, hf_q[0].transpose(0, 1))
    written = kv[slots // tokens_per_block, :, :, slots % tokens_per_block]
    assert torch.equal(written[:, 0], hf_k[0].transpose(0, 1))
    assert torch.equal(written[:, 1], parts[2][0])
    assert kv.isnan().sum() == (64 - tokens) * 2 * kv_heads * dim, "wrote outside its slots"

    truth = rope_reference.qk_norm_rope(qkvg, q_norm, k_norm, *terms, heads, kv_heads, EPS, dtype)
    assert torch.equal(q, truth[0])
    assert torch.equal(written[:, 0], truth[1])


def test_position_terms() -> None:
    positions = torch.tensor([0, 1, 63, 4095, 1_048_575])
    rotary = BeamRotaryEmbedding(small_config())
    inv_freq = rotary.sliding_attention_inv_freq
    cos_sin, scale = ops.position_terms(positions, inv_freq)
    cos, sin = rotary(inv_freq, positions[None], "sliding_attention")
    half = inv_freq.shape[0]
    assert torch.equal(cos_sin, torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1))
    assert torch.equal(scale, compute_attention_scaling(positions[None])[0, 0, :, 0])
    truth = rope_reference.position_terms(positions, inv_freq)
    assert torch.equal(cos_sin, truth[0])
    assert torch.equal(scale, truth[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_swiglu(dtype: torch.dtype) -> None:
    gate_up = 4 * noise(18, 2 * 37, dtype=dtype)
    hf = BeamMLP(small_config(), intermediate_size=37)
    gate, up = gate_up.chunk(2, dim=-1)
    plain = (hf.act_fn(gate.float()) * up.float()).to(dtype)
    truth = swiglu_reference.swiglu(gate_up)
    assert_earned(ops.swiglu(gate_up), plain, truth, 1e-6, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding_shards_add_up_exactly(dtype: torch.dtype) -> None:
    table = noise(24, 10, dtype=dtype)
    tokens = torch.tensor([0, 5, 23, 11, 12, 5])
    whole = torch.nn.functional.embedding(tokens, table).float()
    shards = [ops.embedding(tokens, table[i : i + 8], i) for i in (0, 8, 16)]
    assert torch.equal(sum(shards), whole)
    assert torch.equal(shards[1], embedding_reference.embedding(tokens, table[8:16], 8))


@pytest.mark.parametrize("softcap", [30.0, 2.0, None])
@pytest.mark.parametrize("dtype", DTYPES)
def test_logits(softcap: float | None, dtype: torch.dtype) -> None:
    x, weight = noise(5, 40, dtype=dtype), noise(33, 40, seed=1, dtype=dtype)
    plain = torch.nn.functional.linear(x, weight).float()
    plain = plain if softcap is None else softcap * torch.tanh(plain / softcap)
    ours = ops.logits(x, weight, softcap)
    assert ours.dtype == torch.float32
    assert_earned(ours, plain, logits_reference.logits(x, weight, softcap), 1e-5, softcap)
