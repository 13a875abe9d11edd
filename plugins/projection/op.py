"""Registration of `linear`, `linear_fp8` and `linear_nvfp4`.

On CPU a weight is dequantized once to fp32 [K, N]; a quantized product is then exactly
dequantize-then-multiply with fp32 sums.
"""

import torch
from beam_trt_plugins.projection import activations
from beam_trt_plugins.registry import define, kept
from beam_trt_plugins.row_tiles import matmul, prepare_weight

_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def plain_weight(weight: torch.Tensor) -> torch.Tensor:
    """[..., N, K] any float -> kept fp32 [..., K, N], as `row_tiles.prepare_weight` lays it out."""
    return kept(weight, "_cpu_weight", lambda: prepare_weight(weight.float()))


def fp8_weight(weight: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    """E4M3 [..., N, K] with scales [..., N] -> kept fp32 [..., K, N]."""
    return kept(
        weight,
        "_cpu_weight",
        lambda: prepare_weight(weight.float().mul_(weight_scale.unsqueeze(-1))),
    )


def nvfp4_weight(
    weight: torch.Tensor, weight_scale: torch.Tensor, weight_scale_2: torch.Tensor
) -> torch.Tensor:
    """U8 [..., N, K/2] with scales [..., N, K/16] and [1] or [E] -> kept fp32 [..., K, N]."""

    def build() -> torch.Tensor:
        lead = [1] * (weight.ndim - 2)
        codes = torch.stack((weight & 15, weight >> 4), dim=-1).flatten(-2)
        scale_2 = weight_scale_2.view(-1, 1, 1) if lead else weight_scale_2
        scale = (weight_scale.float() * scale_2).unsqueeze(-1)
        values = _E2M1[codes.int()].unflatten(-1, (-1, activations.NVFP4_BLOCK))
        return prepare_weight(values.mul_(scale).flatten(-2))

    return kept(weight, "_cpu_weight", build)


def _linear(x: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    return matmul(x, plain_weight(weight), weight.shape[0]).to(out_dtype)


def _linear_fp8(
    x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor, out_dtype: torch.dtype
) -> torch.Tensor:
    quantized = activations.fp8_per_token(x)
    return matmul(quantized, fp8_weight(weight, weight_scale), weight.shape[0]).to(out_dtype)


def _linear_nvfp4(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_scale_2: torch.Tensor,
    input_scale: torch.Tensor,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    quantized = activations.nvfp4(x, input_scale)
    weight_t = nvfp4_weight(weight, weight_scale, weight_scale_2)
    return matmul(quantized, weight_t, weight.shape[0]).to(out_dtype)


def _linear_fake(x: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]), dtype=out_dtype)


def _linear_fp8_fake(
    x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor, out_dtype: torch.dtype
) -> torch.Tensor:
    return _linear_fake(x, weight, out_dtype)


def _linear_nvfp4_fake(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_scale_2: torch.Tensor,
    input_scale: torch.Tensor,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    return _linear_fake(x, weight, out_dtype)


OPS = (
    define(
        "linear(Tensor x, Tensor weight, ScalarType out_dtype) -> Tensor", _linear, _linear_fake
    ),
    define(
        "linear_fp8(Tensor x, Tensor weight, Tensor weight_scale, ScalarType out_dtype) -> Tensor",
        _linear_fp8,
        _linear_fp8_fake,
    ),
    define(
        "linear_nvfp4(Tensor x, Tensor weight, Tensor weight_scale, Tensor weight_scale_2, "
        "Tensor input_scale, ScalarType out_dtype) -> Tensor",
        _linear_nvfp4,
        _linear_nvfp4_fake,
    ),
)
