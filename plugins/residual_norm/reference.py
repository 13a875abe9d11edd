"""The truth of `rms_norm` and `norm_boundary`, with the model dtype's roundings as an option."""

import math

import torch


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """fp32 x * rsqrt(mean(x^2) + eps) * weight over the last dimension, then one rounding."""
    x = x.float()
    mean = x.pow(2).mean(-1, keepdim=True)
    return (weight.float() * (x * torch.rsqrt(mean + eps))).to(dtype)


def norm_boundary(
    branch: torch.Tensor,
    residual: torch.Tensor,
    post_weight: torch.Tensor,
    next_weight: torch.Tensor,
    eps: float,
    add_idx: int,
    branch_scale: float,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Post-norm, depth-scaled residual addition, next norm; `dtype` is rounded to at each of the
    places where the published model rounds."""

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype).float()

    scaled = rounded(rounded(branch.float()) * branch_scale)
    normed = rms_norm(scaled, post_weight, eps, dtype).float()
    added = rounded(normed * (1 / math.sqrt(add_idx)))
    kept = rounded(residual.float() * math.sqrt((add_idx - 1) / add_idx))
    out = (added + kept).to(dtype)
    return out, rms_norm(out, next_weight, eps, dtype)
