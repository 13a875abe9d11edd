"""Quantize-dequantize of activations as the checkpoints' formats define it.

Results are fp32 and exactly the numbers a tensor core would multiply. Every row is independent of
the others.
"""

import torch

FP8_MAX = 448.0
FP4_MAX = 6.0
NVFP4_BLOCK = 16
_MIN_BLOCK_SCALE = 2.0**-9
"""Smallest positive E4M3 value; ModelOpt keeps block scales from rounding to zero."""
_EXPONENT_BITS = 0x7F800000


def fp8_per_token(x: torch.Tensor) -> torch.Tensor:
    """[..., K] -> fp32 [..., K]: each row to E4M3 with scale amax / 448, as compressed-tensors'
    dynamic per-token strategy does for fp32 input. A row of zeros stays zero."""
    x = x.float()
    scale = x.abs().amax(-1, keepdim=True).div_(FP8_MAX).clamp_(min=torch.finfo(x.dtype).tiny)
    # The quotient of the largest element may exceed 448 by one ulp; E4M3 conversion would give NaN.
    quantized = x.div(scale).clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return quantized.float().mul_(scale)


def nvfp4(x: torch.Tensor, input_scale: torch.Tensor) -> torch.Tensor:
    """[..., K] -> fp32 [..., K], K a multiple of 16: each block of 16 to E2M1 (nearest, ties to
    even) times an E4M3 scale = amax / (6 * input_scale), as ModelOpt's NVFP4QTensor.quantize does
    with that global scale. `input_scale` fp32 broadcasts against [..., K/16]."""
    blocks = x.float().unflatten(-1, (-1, NVFP4_BLOCK))
    scale = blocks.abs().amax(-1).div_(FP4_MAX * input_scale)
    scale = torch.where(scale == 0, 1.0, scale).clamp_(_MIN_BLOCK_SCALE, FP8_MAX)
    scale = scale.to(torch.float8_e4m3fn).float().mul_(input_scale).unsqueeze(-1)
    return to_e2m1(blocks.div(scale)).mul_(scale).flatten(-2)


def to_e2m1(x: torch.Tensor) -> torch.Tensor:
    """fp32 -> nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with x's sign, ties to even, saturating.

    The spacing is half the power of two below |x| and at least 0.5, and torch.round breaks ties to
    even multiples of it, which is E2M1's even mantissa.
    """
    x = x.clamp(-FP4_MAX, FP4_MAX)
    power = (x.view(torch.int32) & _EXPONENT_BITS).view(torch.float32)
    step = power.clamp_(min=1.0).mul_(0.5)
    return x.div_(step).round_().mul_(step)
