"""Linears: products against fp32 references, quantizers against ModelOpt and compressed-tensors."""

import pytest
import torch
from beam_trt_plugins.projection import activations, reference
from beam_trt_plugins.projection.op import nvfp4_weight
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from reference.engine_weights import NVFP4QTensor, nvfp4_parts
from reference.tolerance import assert_earned

ops = torch.ops.beam_trt
ROWS = [1, 15, 16, 17, 40]


def awkward_activations(columns: int) -> torch.Tensor:
    """Normal, heavy-tailed, tiny, huge, zero and tie-ridden rows, both signs."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(4, columns, generator=generator)
    grid = torch.tensor([0.0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, -6])
    ties = grid.repeat(columns // 16)[None]
    outlier = normal[:1].clone()
    outlier[0, 3] = 300.0
    rows = [normal, normal.pow(5), normal * 1e-6, normal * 1e4, outlier, ties, -ties, 448 * ties]
    return torch.cat([*rows, torch.zeros(1, columns)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("input_scale", [1 / 448, 8 / (6 * 448), 1e-5, 1.0])
def test_nvfp4_activations_are_modelopts(input_scale: float, dtype: torch.dtype) -> None:
    x = awkward_activations(64).to(dtype)
    scale = torch.tensor([input_scale])
    packed, block_scale, _ = NVFP4QTensor.quantize(x.clone(), 16, weights_scaling_factor_2=scale)
    expected = packed.dequantize(
        torch.float32, scale=block_scale, double_scale=scale, block_sizes={-1: 16}
    )
    assert torch.equal(activations.nvfp4(x, scale), expected)


def test_e2m1_ties_go_to_even() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.0, -0.25, -0.75, -5.0, -9.0])
    even = torch.tensor([0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 0.0, -1.0, -4.0, -6.0])
    assert torch.equal(activations.to_e2m1(ties), even)


def test_fp8_activations_are_compressed_tensors() -> None:
    x = awkward_activations(64)
    args = QuantizationArgs(num_bits=8, type="float", strategy="token", dynamic=True)
    scale, zero = compute_dynamic_scales_and_zp(x[None], args, torch.nn.Module())
    expected = fake_quantize(x[None], scale, zero, args)[0]
    assert torch.equal(activations.fp8_per_token(x), expected)


def test_fp8_bf16_activations_have_fp32_scales() -> None:
    x = awkward_activations(64).bfloat16()
    assert torch.equal(activations.fp8_per_token(x), activations.fp8_per_token(x.float()))


def test_nvfp4_weights_dequantize_as_modelopt_does() -> None:
    weight = torch.randn(24, 48, generator=torch.Generator().manual_seed(1)).bfloat16()
    scale_2 = weight.abs().max().float().view(1) / (6 * 448)
    packed, scale = nvfp4_parts(weight, scale_2[0])
    expected = NVFP4QTensor(weight.shape, weight.dtype, packed).dequantize(
        torch.float32, scale=scale, double_scale=scale_2, block_sizes={-1: 16}
    )
    assert torch.equal(nvfp4_weight(packed, scale, scale_2)[:, :24].T, expected)
    assert torch.equal(reference.dequantize_nvfp4(packed, scale, scale_2), expected)


@pytest.mark.parametrize("shape", [(8, 5), (33, 17), (96, 48), (256, 640)])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear(rows: int, shape: tuple[int, int], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, shape[1], generator=generator).to(dtype)
    weight = torch.randn(*shape, generator=generator).to(dtype)
    truth = reference.linear(x, weight)
    plain = torch.nn.functional.linear(x, weight)
    assert_earned(ops.linear(x, weight, dtype), plain, truth, 1e-4, shape)
    partial = ops.linear(x, weight, torch.float32)
    assert partial.dtype == torch.float32
    assert_earned(partial, truth, truth, 1e-4, shape)


@pytest.mark.parametrize("rows", ROWS)
def test_linear_fp8(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 48, generator=generator).bfloat16()
    weight = torch.randn(40, 48, generator=generator).to(torch.float8_e4m3fn)
    scale = torch.rand(40, generator=generator) + 0.5
    truth = reference.linear_fp8(x, weight, scale)
    out = ops.linear_fp8(x, weight, scale, torch.float32)
    assert_earned(out, truth, truth, 1e-4, rows)
    assert torch.equal(ops.linear_fp8(x, weight, scale, torch.bfloat16), out.bfloat16())


@pytest.mark.parametrize("rows", ROWS)
def test_linear_nvfp4(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 48, generator=generator).bfloat16()
    weight = torch.randn(40, 48, generator=generator).bfloat16()
    scale_2 = weight.abs().max().float().view(1) / (6 * 448)
    packed, scale = nvfp4_parts(weight, scale_2[0])
    args = (x, packed, scale, scale_2, torch.tensor([4 / (6 * 448)]))
    truth = reference.linear_nvfp4(*args)
    assert_earned(ops.linear_nvfp4(*args, torch.float32), truth, truth, 1e-4, rows)


def test_quantized_weights_are_close_to_what_they_stand_for() -> None:
    """Catches a swapped nibble or scale that the reference might share."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 256, generator=generator).bfloat16()
    weight = torch.randn(64, 256, generator=generator).bfloat16()
    exact = x.float() @ weight.float().T
    scale_2 = weight.abs().max().float().view(1) / (6 * 448)
    packed, scale = nvfp4_parts(weight, scale_2[0])
    amax = x.abs().max().float().view(1) / (6 * 448)
    nvfp4 = ops.linear_nvfp4(x, packed, scale, scale_2, amax, torch.float32)
    row_scale = weight.float().abs().amax(-1) / 448
    fp8_weight = (weight.float() / row_scale[:, None]).to(torch.float8_e4m3fn)
    fp8 = ops.linear_fp8(x, fp8_weight, row_scale, torch.float32)
    assert (nvfp4 - exact).norm() / exact.norm() < 0.15
    assert (fp8 - exact).norm() / exact.norm() < 0.04
