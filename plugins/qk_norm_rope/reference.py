"""The truth of `position_terms` and `qk_norm_rope_write`."""

import torch
from beam_trt_plugins.residual_norm.reference import rms_norm


def position_terms(
    positions: torch.Tensor, inv_freq: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos, sin of position * inv_freq side by side [n, D]; exp(0.1 log1p((p + 1) / 2048)) [n]."""
    angles = positions[:, None].float() * inv_freq
    scale = torch.exp(0.1 * torch.log1p((positions.float() + 1) / 2048))
    return torch.cat((angles.cos(), angles.sin()), dim=-1), scale


def qk_norm_rope(
    qkvg: torch.Tensor,
    q_norm: torch.Tensor,
    k_norm: torch.Tensor,
    cos_sin: torch.Tensor | None,
    query_scale: torch.Tensor | None,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [n, q, D], k and v [n, kv, D], each rounded to `dtype` where the published model rounds."""
    dim = q_norm.shape[0]
    heads = qkvg.float().view(qkvg.shape[0], -1, dim)
    q = rms_norm(heads[:, :num_heads], q_norm, eps, dtype).float()
    k = rms_norm(heads[:, num_heads : num_heads + num_kv_heads], k_norm, eps, dtype).float()
    v = heads[:, num_heads + num_kv_heads : num_heads + 2 * num_kv_heads]
    if cos_sin is not None:
        q, k = _rotate(q, cos_sin), _rotate(k, cos_sin)
    if query_scale is not None:
        q = q * query_scale[:, None, None]
    return q.to(dtype), k.to(dtype), v.to(dtype)


def _rotate(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    cos, sin = cos_sin[:, None].chunk(2, dim=-1)
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
