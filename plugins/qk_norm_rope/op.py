"""Registration of `position_terms` and `qk_norm_rope_write`."""

import torch
from beam_trt_plugins.registry import define


def _terms_cpu(
    positions: torch.Tensor, inv_freq: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    # fp32 throughout, as the published model computes angles: at a position of a million the
    # rounding of position * inv_freq is part of what the weights were trained with.
    at = positions.float()
    angles = at[:, None] * inv_freq
    scale = at.add_(1).div_(2048).log1p_().mul_(0.1).exp_()
    return torch.cat((angles.cos(), angles.sin()), dim=-1), scale


def _terms_fake(
    positions: torch.Tensor, inv_freq: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    num_tokens = positions.shape[0]
    return (
        inv_freq.new_empty((num_tokens, 2 * inv_freq.shape[0])),
        inv_freq.new_empty((num_tokens,)),
    )


def _write_cpu(
    qkvg: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    cos_sin: torch.Tensor | None,
    query_scale: torch.Tensor | None,
    kv: torch.Tensor,
    slots: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
) -> torch.Tensor:
    num_tokens, dim = qkvg.shape[0], q_norm.shape[0]
    dtype = qkvg.dtype
    end_k, end_v = num_heads + num_kv_heads, num_heads + 2 * num_kv_heads
    heads = qkvg[:, : end_v * dim].reshape(num_tokens, end_v, dim)
    qk = heads[:, :end_k].float()
    qk = qk.square().mean(-1, keepdim=True).add_(eps).rsqrt_().mul(qk)
    qk[:, :num_heads].mul_(q_norm)
    qk[:, num_heads:].mul_(k_norm)
    qk = qk.to(dtype)
    if cos_sin is not None:
        qk = _rotate(qk.float(), cos_sin).to(dtype)
    q, k = qk[:, :num_heads], qk[:, num_heads:]
    if query_scale is not None:
        q = q.float().mul(query_scale[:, None, None]).to(dtype)
    tokens_per_block = kv.shape[3]
    block, offset = slots // tokens_per_block, slots % tokens_per_block
    kv[block, :, :, offset] = torch.stack((k, heads[:, end_k:end_v]), dim=1).to(kv.dtype)
    return q.contiguous()


def _rotate(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """Neox halves: (a, b) -> (a cos - b sin, b cos + a sin)."""
    cos, sin = cos_sin.unsqueeze(1).chunk(2, dim=-1)
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def _write_fake(
    qkvg: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    cos_sin: torch.Tensor | None,
    query_scale: torch.Tensor | None,
    kv: torch.Tensor,
    slots: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
) -> torch.Tensor:
    return qkvg.new_empty((qkvg.shape[0], num_heads, q_norm.shape[0]))


OPS = (
    define(
        "position_terms(Tensor positions, Tensor inv_freq) -> (Tensor, Tensor)",
        _terms_cpu,
        _terms_fake,
    ),
    define(
        "qk_norm_rope_write(Tensor qkvg, Tensor q_norm, Tensor k_norm, Tensor? cos_sin, "
        "Tensor? query_scale, Tensor(a!) kv, Tensor slots, int num_heads, int num_kv_heads, "
        "float eps) -> Tensor",
        _write_cpu,
        _write_fake,
    ),
)
