"""Quantizing one matrix: against ModelOpt's and torch's own dequantization, and at the edges."""

from collections.abc import Callable

import pytest
import torch

from beam_trt.quantize import primitives
from beam_trt.quantize.modelopt_functions import modelopt_functions

BF16_TINY = float(torch.finfo(torch.bfloat16).tiny)


def normal(rows: int = 24, columns: int = 64) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


def heavy_tails() -> torch.Tensor:
    return normal() ** 5


def outlier() -> torch.Tensor:
    weight = normal() * 0.01
    weight[3, 17] = 300.0
    return weight


MATRICES: dict[str, Callable[[], torch.Tensor]] = {
    "normal": normal,
    "heavy tails": heavy_tails,
    "outlier": outlier,
    "one value": lambda: torch.full((4, 32), -0.37),
    "negative zero": lambda: torch.cat((torch.full((2, 16), -0.0), normal(2, 16))),
    "tiny": lambda: normal() * 1e-30,
    "denormal": lambda: normal() * (BF16_TINY / 4),
    "large": lambda: normal() * 1e30,
}


def nvfp4(weight: torch.Tensor) -> primitives.Nvfp4Matrix:
    return primitives.quantize_nvfp4(weight, primitives.nvfp4_scale(primitives.amax([weight])))


@pytest.mark.parametrize("name", MATRICES)
def test_nvfp4_is_modelopts_and_dequantizes_the_same(name: str) -> None:
    weight = MATRICES[name]().bfloat16()
    before = weight.clone()
    matrix = nvfp4(weight)
    assert torch.equal(weight, before), "the input was changed"
    theirs, scale, scale_2 = modelopt_functions().nvfp4.quantize(weight.clone(), 16)
    assert torch.equal(matrix.weight, theirs._quantized_data)
    assert matrix.weight_scale.float().tolist() == scale.float().tolist()
    assert float(matrix.weight_scale_2) == float(scale_2)
    expected = theirs.dequantize(
        torch.float32, scale=scale, double_scale=scale_2, block_sizes={-1: 16}
    )
    assert torch.equal(matrix.dequantize(), expected)


def test_nvfp4_packs_even_columns_low() -> None:
    weight = torch.zeros(1, 16, dtype=torch.bfloat16)
    weight[0, 0], weight[0, 1] = 6.0, -0.5
    matrix = nvfp4(weight)
    assert int(matrix.weight[0, 0]) == 0x7 | 0x9 << 4
    assert matrix.weight.shape == (1, 8)
    assert matrix.weight_scale.dtype == torch.float8_e4m3fn


def test_nvfp4_error_on_normal_weights() -> None:
    weight = normal(256, 512).bfloat16()
    restored = nvfp4(weight).dequantize()
    error = (restored - weight.float()).norm() / weight.float().norm()
    assert 0.090 < error < 0.100


def test_nvfp4_of_zeros_is_zeros_with_usable_scales() -> None:
    matrix = nvfp4(torch.zeros(2, 32, dtype=torch.bfloat16))
    assert float(matrix.weight_scale_2) > 0
    scales = matrix.weight_scale.float()
    assert bool((scales.isfinite() & (scales > 0)).all())
    assert torch.equal(matrix.dequantize(), torch.zeros(2, 32))


@pytest.mark.parametrize("name", MATRICES)
def test_fp8_is_the_nearest_number_under_its_channel_scale(name: str) -> None:
    weight = MATRICES[name]().bfloat16()
    matrix = primitives.quantize_fp8(weight)
    assert matrix.weight.dtype == torch.float8_e4m3fn
    assert matrix.weight_scale.shape == (weight.shape[0], 1)
    scales = matrix.weight_scale
    assert bool((scales.isfinite() & (scales > 0)).all())
    restored = matrix.dequantize()
    assert bool(restored.isfinite().all())
    # Half a step of E4M3 is 1/16 of a value, or 2^-10 of a scale below the normal numbers.
    allowed = torch.maximum(weight.float().abs() / 16, scales * 2**-10)
    assert bool(((restored - weight.float()).abs() <= allowed * 1.001).all())


def test_fp8_error_on_normal_weights() -> None:
    weight = normal(256, 512).bfloat16()
    restored = primitives.quantize_fp8(weight).dequantize()
    error = (restored - weight.float()).norm() / weight.float().norm()
    assert 0.024 < error < 0.029


def test_fp8_rows_of_zeros() -> None:
    weight = torch.zeros(3, 8, dtype=torch.bfloat16)
    weight[1] = 2.0
    restored = primitives.quantize_fp8(weight).dequantize()
    assert torch.equal(restored, weight.float())


def test_amax_reports_what_is_not_finite() -> None:
    assert float(primitives.amax([torch.tensor([1.0, -3.0]), torch.tensor([2.0])])) == 3.0
    for wrong in (float("nan"), float("inf")):
        found = primitives.amax([torch.tensor([wrong]), torch.tensor([2.0])])
        assert not bool(found.isfinite())


def test_tiles_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = heavy_tails().bfloat16()
    whole = nvfp4(weight), primitives.quantize_fp8(weight)
    monkeypatch.setattr(primitives, "_TILE_ELEMENTS", 5 * 64)
    tiled = nvfp4(weight), primitives.quantize_fp8(weight)
    for a, b in zip(whole, tiled, strict=True):
        assert torch.equal(a.weight.view(torch.uint8), b.weight.view(torch.uint8))
        assert torch.equal(a.weight_scale.float(), b.weight_scale.float())
        assert torch.equal(b.rows(slice(7, 11)).dequantize(), a.dequantize()[7:11])
