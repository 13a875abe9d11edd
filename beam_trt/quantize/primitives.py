"""One matrix to its quantized form and back, through ModelOpt's own functions.

Knows nothing about names, layers or files. Matrices are [out_features, in_features].
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from beam_trt.config.quant import FP4_MAX, FP8_MAX, NVFP4_BLOCK
from beam_trt.quantize.modelopt_functions import modelopt_functions

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True, slots=True)
class Nvfp4Matrix:
    """`weight` U8 [out, in / 2], low nibble = even column; `weight_scale` E4M3 [out, in / 16];
    `weight_scale_2` F32 []. Value = E2M1 * weight_scale * weight_scale_2."""

    weight: torch.Tensor
    weight_scale: torch.Tensor
    weight_scale_2: torch.Tensor


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """`weight` E4M3 [out, in]; `weight_scale` F32 [out, 1]. Value = weight * weight_scale."""

    weight: torch.Tensor
    weight_scale: torch.Tensor


def amax(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Largest magnitude over all tensors, F32 []; NaN or inf where any value is."""
    largest = [tensor.abs().amax().float() for tensor in tensors]
    return torch.stack(largest).amax()


def nvfp4_scale(largest: torch.Tensor) -> torch.Tensor:
    """The second-level scale amax / (6 * 448), F32 [], as ModelOpt computes it: weight_scale_2
    from a group's weights, input_scale from a site's activations.

    Zeros alone would give scale 0 and NaN blocks; they get the scale of amax 1 instead, with which
    every block of zeros stays zero.
    """
    scale = largest.float() / (FP4_MAX * FP8_MAX)
    return torch.where(scale > 0, scale, 1.0 / (FP4_MAX * FP8_MAX))


def quantize_nvfp4(weight: torch.Tensor, weight_scale_2: torch.Tensor) -> Nvfp4Matrix:
    """Blocks of 16 columns to E2M1 with an E4M3 scale each, under a given second-level scale.

    `weight` bf16 [out, in], in % 16 == 0. Peak memory: about 20 bytes per element.
    """
    assert weight.shape[-1] % NVFP4_BLOCK == 0, f"{weight.shape=}"
    nvfp4 = modelopt_functions().nvfp4
    scale, _ = nvfp4.get_weights_scaling_factor(weight, NVFP4_BLOCK, weight_scale_2)
    packed, scale, _ = nvfp4.quantize(weight, NVFP4_BLOCK, scale, weight_scale_2)
    return Nvfp4Matrix(packed._quantized_data, scale, weight_scale_2)


def dequantize_nvfp4(matrix: Nvfp4Matrix) -> torch.Tensor:
    """F32 [out, in]."""
    codes = torch.stack((matrix.weight & 0xF, matrix.weight >> 4), dim=-1).flatten(-2)
    table = torch.tensor(_E2M1 + tuple(-value for value in _E2M1))
    blocks = table[codes.long()].unflatten(-1, (-1, NVFP4_BLOCK))
    scale = matrix.weight_scale.float() * matrix.weight_scale_2
    return (blocks * scale.unsqueeze(-1)).flatten(-2)


def quantize_fp8(weight: torch.Tensor) -> Fp8Matrix:
    """E4M3 with one scale a row, amax / 448; `weight` bf16 [out, in].

    A row of zeros would divide by 0, so a scale is at least the smallest normal F32.
    """
    largest = weight.abs().amax(dim=-1).float()
    scale = torch.where(largest > 0, largest / FP8_MAX, 1.0)
    scale = scale.clamp(min=torch.finfo(torch.float32).tiny)
    quantized = modelopt_functions().to_quantized_weight(weight, scale, "fp8_pc_pt")
    return Fp8Matrix(quantized, scale[:, None])


def dequantize_fp8(matrix: Fp8Matrix) -> torch.Tensor:
    """F32 [out, in]."""
    return matrix.weight.float() * matrix.weight_scale.float()
