"""Registration of `rms_norm` and `norm_boundary`."""

import math

import torch
from beam_trt_plugins.registry import define


def normalize(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """fp32 RMSNorm over the last dimension of an fp32 tensor, not yet rounded."""
    scale = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return scale.mul(x).mul_(weight)


def _rms_norm_cpu(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return normalize(x.float(), weight, eps).to(x.dtype)


def _rms_norm_fake(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.empty_like(x)


def _boundary_cpu(
    branch: torch.Tensor,
    residual: torch.Tensor,
    post_weight: torch.Tensor,
    next_weight: torch.Tensor,
    eps: float,
    add_idx: int,
    branch_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = residual.dtype
    branch = branch.to(dtype)
    if branch_scale != 1.0:
        branch = branch * branch_scale
    added = normalize(branch.float(), post_weight, eps).to(dtype)
    # Each product rounds to the model dtype before the sum rounds again, as two torch ops do.
    added = added.mul_(1 / math.sqrt(add_idx))
    out = added.add_(residual * math.sqrt((add_idx - 1) / add_idx))
    return out, normalize(out.float(), next_weight, eps).to(dtype)


def _boundary_fake(
    branch: torch.Tensor,
    residual: torch.Tensor,
    post_weight: torch.Tensor,
    next_weight: torch.Tensor,
    eps: float,
    add_idx: int,
    branch_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(residual), torch.empty_like(residual)


OPS = (
    define("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", _rms_norm_cpu, _rms_norm_fake),
    define(
        "norm_boundary(Tensor branch, Tensor residual, Tensor post_weight, Tensor next_weight, "
        "float eps, int add_idx, float branch_scale) -> (Tensor, Tensor)",
        _boundary_cpu,
        _boundary_fake,
    ),
)
