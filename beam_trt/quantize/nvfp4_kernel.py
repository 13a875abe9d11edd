"""Blocks of 16 values to E2M1 codes and E4M3 scales: ModelOpt's arithmetic, written for speed.

Two forms with the same bytes as ModelOpt's NVFP4QTensor: plain torch, and one that torch.compile
turns into a single vectorized loop. Knows nothing about matrices, groups or files.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from beam_trt.config.quant import FP4_MAX, FP8_MAX, NVFP4_BLOCK

QuantizeBlocks = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""(blocks [n, 16] of any float dtype, scale_2 F32 []) to (packed U8 [n, 8], scales E4M3 [n])."""

COMPILE_FROM_BYTES = 4_000_000_000
"""Compiling takes 5 to 20 seconds and saves about 3 a gigabyte, so smaller runs stay plain."""

# A value's code is the number of bounds below it. Halfway values go to the even code, so the upper
# neighbour of an odd code takes its bound too.
_EXCLUSIVE_BOUNDS = (0.25, 1.25, 2.5, 5.0)
_INCLUSIVE_BOUNDS = (0.75, 1.75, 3.5)
_SIGN = 8

_MIN_SCALE = 2.0**-9
"""The smallest E4M3 number; a scale below it would become 0."""

_TILE_BLOCKS = 1 << 15
"""Blocks that plain torch works on at once: their temporaries fit a core's cache."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A form to use, and why it is not the fast one, for a report; None where nothing is to say."""

    quantize_blocks: QuantizeBlocks
    note: str | None = None


def choose_kernel(num_bytes: int) -> Kernel:
    """The form for a run that reads `num_bytes` of weights: compiled where that pays and works."""
    return compiled_kernel() if num_bytes >= COMPILE_FROM_BYTES else Kernel(quantize_blocks)


def quantize_blocks(
    blocks: torch.Tensor, scale_2: torch.Tensor, tile: QuantizeBlocks | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize tile by tile, in plain torch unless another form is given. Holds the result and one
    tile's temporaries."""
    packed = torch.empty(blocks.shape[0], NVFP4_BLOCK // 2, dtype=torch.uint8)
    scales = torch.empty(blocks.shape[0], dtype=torch.float8_e4m3fn)
    for start in range(0, blocks.shape[0], _TILE_BLOCKS):
        part = slice(start, start + _TILE_BLOCKS)
        packed[part], scales[part] = (tile or _in_bytes)(blocks[part], scale_2)
    return packed, scales


def compiled_kernel() -> Kernel:
    """The compiled form, or the plain one with a note where torch.compile does not work here, or
    gives other bytes than the plain form on a probe of awkward values."""
    compiled = torch.compile(_in_floats, dynamic=True, options={"compile_threads": 1})
    blocks, scale_2 = _probe()
    try:
        found = quantize_blocks(blocks, scale_2, compiled)
    # Whatever a missing or broken compiler raises, the plain form does the work.
    except Exception as error:  # noqa: BLE001
        reason = str(error).strip().splitlines() or [type(error).__name__]
        return _plain(f"torch.compile does not work here ({reason[0]})")
    expected = quantize_blocks(blocks, scale_2)
    same = [
        torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        for a, b in zip(found, expected, strict=True)
    ]
    if not all(same) or _flushes_denormals():
        torch.set_flush_denormal(False)
        return _plain("torch.compile's code rounds differently here")
    return Kernel(partial(quantize_blocks, tile=compiled))


def _plain(reason: str) -> Kernel:
    return Kernel(
        quantize_blocks,
        f"{reason}: NVFP4 was quantized with plain torch, about five times slower and with the "
        "same bytes. A C++ compiler (g++) on the PATH makes it fast.",
    )


def _scales(blocks: torch.Tensor, scale_2: torch.Tensor) -> torch.Tensor:
    scale = blocks.abs().amax(dim=-1).float() / (FP4_MAX * scale_2)
    # A block of zeros has scale 1, as ModelOpt writes it.
    scale = torch.where(scale == 0, 1.0, scale).clamp(_MIN_SCALE, FP8_MAX)
    return scale.to(torch.float8_e4m3fn)


def _scaled(blocks: torch.Tensor, scales: torch.Tensor, scale_2: torch.Tensor) -> torch.Tensor:
    """F32 [n, 16] in units of E2M1; the divisor is one product, rounded, as in ModelOpt."""
    return blocks.float() / (scales.float() * scale_2)[:, None]


def _in_bytes(blocks: torch.Tensor, scale_2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The form for plain torch, where narrow temporaries are cheap."""
    scales = _scales(blocks, scale_2)
    scaled = _scaled(blocks, scales, scale_2)
    largest = scaled.abs()
    codes = (scaled < 0).to(torch.uint8) * _SIGN
    # Asked as "not below", so that a NaN (0 / 0 under a scale that underflows) gets the largest
    # code, as in ModelOpt.
    for bound in _EXCLUSIVE_BOUNDS:
        codes += ~(largest <= bound)
    for bound in _INCLUSIVE_BOUNDS:
        codes += ~(largest < bound)
    return codes[:, 0::2] | codes[:, 1::2] << 4, scales


def _in_floats(blocks: torch.Tensor, scale_2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The form for the compiler, which vectorizes only where everything is of one width: codes stay
    F32, exactly, to the end."""
    scales = _scales(blocks, scale_2)
    scaled = _scaled(blocks, scales, scale_2)
    largest = scaled.abs()
    codes = torch.where(scaled < 0, float(_SIGN), 0.0)
    for bound in _EXCLUSIVE_BOUNDS:
        codes = codes + torch.where(largest <= bound, 0.0, 1.0)
    for bound in _INCLUSIVE_BOUNDS:
        codes = codes + torch.where(largest < bound, 0.0, 1.0)
    return (codes[:, 0::2] + 16.0 * codes[:, 1::2]).to(torch.uint8), scales


def _probe() -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks with every tie of E2M1 in both signs, zeros, -0, and magnitudes down to denormals."""
    bounds = sorted((*_EXCLUSIVE_BOUNDS, *_INCLUSIVE_BOUNDS))
    # 6 and 448 / 448 make both scales 1, so that the bounds are met exactly.
    row = torch.tensor([*bounds, *(-bound for bound in bounds), FP4_MAX, -0.0])
    rows = [row * 2.0**-power for power in (*range(12), 100, 120, 126, 130)]
    blocks = torch.stack([*rows, torch.zeros(NVFP4_BLOCK), -torch.zeros(NVFP4_BLOCK)])
    # More than a tile, and not a whole number of them.
    blocks = blocks.repeat(_TILE_BLOCKS // 10, 1)
    return blocks.to(torch.bfloat16), torch.tensor(1.0)


def _flushes_denormals() -> bool:
    """Code built with fast-math may switch the whole process to it when it is loaded."""
    return bool((torch.full((64,), torch.finfo(torch.float32).tiny) * 0.5 == 0).any())
