"""Both forms of the NVFP4 kernel against ModelOpt's function, byte by byte."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from beam_trt import quantize
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.quantize import nvfp4_kernel, primitives
from beam_trt.quantize.modelopt_functions import modelopt_functions
from beam_trt.quantize.nvfp4_kernel import Kernel, compiled_kernel, quantize_blocks

BF16_TINY = float(torch.finfo(torch.bfloat16).tiny)
BOUNDS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])


@pytest.fixture(scope="module")
def compiled() -> Kernel:
    kernel = compiled_kernel()
    if kernel.note is not None:
        pytest.skip(f"needs a C++ compiler: {kernel.note}")
    return kernel


@pytest.fixture(params=["plain", "compiled"])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    if request.param == "plain":
        return Kernel(quantize_blocks)
    found: Kernel = request.getfixturevalue("compiled")
    return found


def normal(seed: int = 0, rows: int = 96, columns: int = 160) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def ties() -> torch.Tensor:
    """Bounds of E2M1 times powers of two, exact in bf16, both signs, and their two neighbours."""
    values = torch.cat((BOUNDS, -BOUNDS))
    rows = torch.stack([values * 2.0**power for power in range(-12, 4)]).bfloat16()
    bits = rows.view(torch.int16)
    return torch.cat((rows, (bits + 1).view(torch.bfloat16), (bits - 1).view(torch.bfloat16)))


def random_bits() -> torch.Tensor:
    """Every finite bf16 there is, shuffled: all exponents side by side in a block."""
    bits = torch.randperm(1 << 16, generator=torch.Generator().manual_seed(1))
    values = (bits - (1 << 15)).to(torch.int16).view(torch.bfloat16)
    return values[values.isfinite()].view(-1, 16)


def few_large() -> torch.Tensor:
    weight = normal() * 0.01
    weight[3, 17], weight[40, 0] = 300.0, -1e4
    return weight


MATRICES: dict[str, Callable[[], torch.Tensor]] = {
    "normal": normal,
    "heavy tails": lambda: normal() ** 9,
    "ties": ties,
    "every finite number": random_bits,
    "outliers": few_large,
    "zeros among others": lambda: torch.where(normal(1) > 0.5, normal(), 0.0),
    "blocks of zeros": lambda: normal() * (torch.arange(96) % 3 == 0)[:, None],
    "negative zeros": lambda: torch.where(normal(1) > 0.5, normal(), -0.0),
    "one value": lambda: torch.full((4, 32), -0.37),
    "rows of one value": lambda: normal(columns=1).expand(96, 32).contiguous(),
    "tiny": lambda: normal() * 1e-30,
    "denormal": lambda: normal() * (BF16_TINY / 4),
    "smallest denormals": lambda: normal() * (BF16_TINY / 100),
    "denormals beside one": lambda: torch.where(normal(1) > 2.5, 1.0, normal() * BF16_TINY),
    "large": lambda: normal() * 1e30,
    "one block": lambda: normal(rows=1, columns=16),
}


def check(kernel: Kernel, weight: torch.Tensor, scale_2: torch.Tensor) -> None:
    matrix = primitives.quantize_nvfp4(weight, scale_2, kernel.quantize_blocks)
    theirs = modelopt_functions().nvfp4
    scales, _ = theirs.get_weights_scaling_factor(weight.clone(), 16, scale_2)
    packed, _, _ = theirs.quantize(weight.clone(), 16, scales, scale_2)
    assert torch.equal(matrix.weight_scale.view(torch.uint8), scales.view(torch.uint8))
    assert torch.equal(matrix.weight, packed._quantized_data)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", MATRICES)
def test_bytes_are_modelopts(kernel: Kernel, name: str, dtype: torch.dtype) -> None:
    weight = MATRICES[name]().to(dtype)
    if not weight.isfinite().all():
        weight = weight.clamp(-6e4, 6e4)
    before = weight.clone()
    check(kernel, weight, primitives.nvfp4_scale(primitives.amax([weight])))
    assert torch.equal(weight, before), "the input was changed"


@pytest.mark.parametrize("factor", [0.0, 1e-3, 0.3, 7.0, 1e6])
def test_scale_of_a_group_with_another_maximum(kernel: Kernel, factor: float) -> None:
    """A group's scale is that of its largest matrix; smaller ones, and the wrong, saturate."""
    weight = (normal() ** 3).bfloat16()
    scale = primitives.nvfp4_scale(primitives.amax([weight]) * factor)
    check(kernel, weight, scale)


def test_scales_that_underflow_to_nothing(kernel: Kernel) -> None:
    """0 / 0 in the division is not a number; ModelOpt gives it the largest code."""
    weight = torch.zeros(2, 32, dtype=torch.bfloat16)
    weight[0, 0] = 9.2e-41
    check(kernel, weight, torch.tensor(1e-45))


def test_more_than_one_tile(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvfp4_kernel, "_TILE_BLOCKS", 7)
    weight = (normal() ** 3).bfloat16()
    check(kernel, weight, primitives.nvfp4_scale(primitives.amax([weight])))


def test_compiler_that_does_not_work(
    source: Path, samples: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantize.run(source, tmp_path / "whole", QuantConfig(Precision.NVFP4), samples)
    monkeypatch.setattr(nvfp4_kernel, "COMPILE_FROM_BYTES", 0)

    def broken(*_: object, **__: object) -> Callable[..., object]:
        def call(*_: object) -> object:
            raise RuntimeError("no C++ compiler found")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    report = quantize.run(source, tmp_path / "out", QuantConfig(Precision.NVFP4), samples)
    (note,) = [text for text in report.warnings if "torch.compile" in text]
    assert "does not work here (no C++ compiler found)" in note
    assert "A C++ compiler (g++) on the PATH" in note
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()


def test_compiler_that_rounds_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    def sloppy(*_: object, **__: object) -> Callable[..., object]:
        return lambda blocks, scale_2: (blocks[:, :8].to(torch.uint8), blocks[:, 0] * 0)

    monkeypatch.setattr(torch, "compile", sloppy)
    kernel = compiled_kernel()
    assert kernel.note is not None
    assert "rounds differently here" in kernel.note
    assert kernel.quantize_blocks is quantize_blocks


def test_compiled_run_has_the_same_bytes(
    source: Path,
    samples: list[list[int]],
    tmp_path: Path,
    compiled: Kernel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quantize.run(source, tmp_path / "plain", QuantConfig(Precision.NVFP4), samples)
    monkeypatch.setattr(nvfp4_kernel, "compiled_kernel", lambda: compiled)
    monkeypatch.setattr(nvfp4_kernel, "COMPILE_FROM_BYTES", 0)
    report = quantize.run(source, tmp_path / "out", QuantConfig(Precision.NVFP4), samples)
    assert not any("torch.compile" in text for text in report.warnings)
    for path in (tmp_path / "plain").iterdir():
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()


def test_small_runs_do_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Kernel:
        raise AssertionError("compiled for a small run")

    monkeypatch.setattr(nvfp4_kernel, "compiled_kernel", refuse)
    assert nvfp4_kernel.choose_kernel(10**9).quantize_blocks is quantize_blocks
    with pytest.raises(AssertionError):
        nvfp4_kernel.choose_kernel(10**12)
