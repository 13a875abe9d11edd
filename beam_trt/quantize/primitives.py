"""One matrix to its quantized form and back, with the bytes that ModelOpt's own functions give.

Knows nothing about names, layers or files. Matrices are [out_features, in_features].
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from beam_trt.config.quant import FP4_MAX, FP8_MAX, NVFP4_BLOCK
from beam_trt.quantize.modelopt_functions import modelopt_functions
from beam_trt.quantize.nvfp4_kernel import QuantizeBlocks, quantize_blocks

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


_TILE_ELEMENTS = 1 << 19
"""Elements worked on at once: rows are independent, and a tile's temporaries (about 20 bytes per
element) stay in a core's cache and small beside the matrix."""


@dataclass(frozen=True, slots=True)
class Nvfp4Matrix:
    """`weight` U8 [out, in / 2], low nibble = even column; `weight_scale` E4M3 [out, in / 16];
    `weight_scale_2` F32 []. Value = E2M1 * weight_scale * weight_scale_2."""

    weight: torch.Tensor
    weight_scale: torch.Tensor
    weight_scale_2: torch.Tensor

    def rows(self, part: slice) -> "Nvfp4Matrix":
        """A view of some rows."""
        return Nvfp4Matrix(self.weight[part], self.weight_scale[part], self.weight_scale_2)

    def dequantize(self) -> torch.Tensor:
        """F32 [out, in]."""
        codes = torch.stack((self.weight & 0xF, self.weight >> 4), dim=-1).flatten(-2)
        table = torch.tensor(_E2M1 + tuple(-value for value in _E2M1))
        blocks = table[codes.long()].unflatten(-1, (-1, NVFP4_BLOCK))
        scale = self.weight_scale.float() * self.weight_scale_2
        return (blocks * scale.unsqueeze(-1)).flatten(-2)


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """`weight` E4M3 [out, in]; `weight_scale` F32 [out, 1]. Value = weight * weight_scale."""

    weight: torch.Tensor
    weight_scale: torch.Tensor

    def rows(self, part: slice) -> "Fp8Matrix":
        """A view of some rows."""
        return Fp8Matrix(self.weight[part], self.weight_scale[part])

    def dequantize(self) -> torch.Tensor:
        """F32 [out, in]."""
        return self.weight.float() * self.weight_scale.float()


def row_tiles(matrix: torch.Tensor) -> Iterator[slice]:
    """Consecutive rows of about _TILE_ELEMENTS elements each."""
    rows, columns = matrix.shape
    step = max(_TILE_ELEMENTS // columns, 1)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


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


def quantize_nvfp4(
    weight: torch.Tensor,
    weight_scale_2: torch.Tensor,
    kernel: QuantizeBlocks = quantize_blocks,
) -> Nvfp4Matrix:
    """Blocks of 16 columns to E2M1 with an E4M3 scale each, under a given second-level scale.

    `weight` bf16 [out, in], in % 16 == 0. Holds the result and little else.
    """
    rows, columns = weight.shape
    assert columns % NVFP4_BLOCK == 0, f"{weight.shape=}"
    packed, scales = kernel(weight.reshape(-1, NVFP4_BLOCK), weight_scale_2)
    return Nvfp4Matrix(
        packed.view(rows, columns // 2), scales.view(rows, columns // NVFP4_BLOCK), weight_scale_2
    )


def quantize_fp8(weight: torch.Tensor) -> Fp8Matrix:
    """E4M3 with one scale a row, amax / 448; `weight` bf16 [out, in].

    A row of zeros would divide by 0, so a scale is at least the smallest normal F32. Holds the
    result and one tile's temporaries.
    """
    to_quantized_weight = modelopt_functions().to_quantized_weight
    quantized = torch.empty(weight.shape, dtype=torch.float8_e4m3fn)
    scales = torch.empty(weight.shape[0], 1)
    for part in row_tiles(weight):
        largest = weight[part].abs().amax(dim=-1).float()
        scale = torch.where(largest > 0, largest / FP8_MAX, 1.0)
        scale = scale.clamp(min=torch.finfo(torch.float32).tiny)
        quantized[part] = to_quantized_weight(weight[part], scale, "fp8_pc_pt")
        scales[part] = scale[:, None]
    return Fp8Matrix(quantized, scales)
