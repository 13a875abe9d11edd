"""Matrix products on CPU whose rows do not depend on each other, to the bit.

A BLAS picks its kernel by the shape of the product, so the sum behind one token's row may be
ordered differently alone and in a batch. Here every product has `ROWS` rows, zero padded: the same
call on the same shapes whatever the batch. The weight is fp32, transposed, contiguous and padded to
`COLUMNS`, since the kernels for what is left of a row of registers treat the rows of a tile
differently (tests/kernels/test_invariance.py found them).
"""

import torch
from torch.nn import functional

ROWS = 16
"""Rows of one tile: one AVX-512 register block of MKL, and small enough for a batch of one."""


COLUMNS = 16
"""Columns of a prepared weight are a multiple of this, one AVX-512 register."""


def prepare_weight(weight: torch.Tensor) -> torch.Tensor:
    """[..., N, K] fp32 -> its own fp32 [..., K, N up to a multiple of COLUMNS], zero padded."""
    columns = weight.shape[-2]
    shape = (*weight.shape[:-2], weight.shape[-1], columns + -columns % COLUMNS)
    out = torch.zeros(shape)
    out[..., :columns] = weight.transpose(-1, -2)
    return out


def pad_rows(x: torch.Tensor) -> torch.Tensor:
    """[n, columns] -> fp32 [tiles * ROWS, columns], contiguous, zero behind row n."""
    missing = -x.shape[0] % ROWS
    x = x.float()
    return functional.pad(x, (0, 0, 0, missing)) if missing else x.contiguous()


def matmul(x: torch.Tensor, weight_t: torch.Tensor, columns: int) -> torch.Tensor:
    """x [n, K] times the first `columns` of a prepared weight_t [K, N] -> fp32 [n, columns], each
    row independent of the others."""
    padded = pad_rows(x)
    out = torch.empty(padded.shape[0], weight_t.shape[1])
    for start in range(0, padded.shape[0], ROWS):
        torch.mm(padded[start : start + ROWS], weight_t, out=out[start : start + ROWS])
    return out[: x.shape[0], :columns]


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + exp(-x)) in fp32. torch.sigmoid rounds differently in the last, partly filled vector
    of an array, so that an element would depend on its place."""
    return torch.exp(-x).add_(1.0).reciprocal_()


def silu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(x) in fp32; own for the same reason as `sigmoid`."""
    return x / torch.exp(-x).add_(1.0)
