"""The truth of the linears: dequantize everything to fp32, then one product."""

import torch

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the E2M1 codes 0 to 7; bit 3 is the sign."""


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [n, K] @ weight[N, K].T in fp32."""
    return x.float() @ weight.float().T


def dequantize_fp8(weight: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    """E4M3 [..., N, K] times one scale a row [..., N] -> fp32."""
    return weight.float() * weight_scale.unsqueeze(-1)


def dequantize_nvfp4(
    weight: torch.Tensor, weight_scale: torch.Tensor, weight_scale_2: torch.Tensor
) -> torch.Tensor:
    """U8 [..., N, K/2], low nibble the even column, with E4M3 scales [..., N, K/16] and one fp32
    scale a matrix ([1], or [E] for [E, N, K/2]) -> fp32 [..., N, K]."""
    codes = torch.stack((weight & 15, weight >> 4), dim=-1).flatten(-2).long()
    values = torch.tensor([*E2M1, *(-v for v in E2M1)])[codes]
    scale = weight_scale.float() * weight_scale_2.view(-1, *[1] * (weight.ndim - 1)).squeeze(0)
    return values * scale.repeat_interleave(16, dim=-1)


def linear_fp8(x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    """Per-token dynamic E4M3 activations times per-channel E4M3 weights."""
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-30) / 448
    quantized = (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
    return linear(quantized, dequantize_fp8(weight, weight_scale))


def quantize_nvfp4(x: torch.Tensor, input_scale: torch.Tensor) -> torch.Tensor:
    """Activations [n, K] through NVFP4, value by value: the nearest E2M1 of x over the block scale,
    an even code where two are equally near."""
    out = torch.empty_like(x, dtype=torch.float32)
    grid = torch.tensor(E2M1)
    for row in range(x.shape[0]):
        for start in range(0, x.shape[1], 16):
            block = x[row, start : start + 16].float()
            scale = block.abs().max() / (6 * input_scale.squeeze())
            scale = torch.ones(()) if scale == 0 else scale.clamp(2**-9, 448)
            scale = scale.to(torch.float8_e4m3fn).float() * input_scale.squeeze()
            scaled = block / scale
            distance = (scaled.abs().clamp(max=6)[:, None] - grid).abs()
            # Odd codes lose ties: a fraction far below any spacing is added to their distance.
            code = (distance + 1e-12 * (torch.arange(8) % 2)).double().argmin(-1)
            nearest = distance.min(-1, keepdim=True).values == distance
            even = nearest & (torch.arange(8) % 2 == 0)
            code = torch.where(even.any(-1), even.int().argmax(-1), code)
            out[row, start : start + 16] = grid[code] * scaled.sign() * scale
    return out


def linear_nvfp4(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    weight_scale_2: torch.Tensor,
    input_scale: torch.Tensor,
) -> torch.Tensor:
    """W4A4: quantized activations times dequantized weights, fp32 sums."""
    return linear(
        quantize_nvfp4(x, input_scale), dequantize_nvfp4(weight, weight_scale, weight_scale_2)
    )
