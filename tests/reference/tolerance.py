"""The earned tolerance of style rule 12."""

import torch


def assert_earned(
    kernel: torch.Tensor, plain: torch.Tensor, reference: torch.Tensor, atol: float, case: object
) -> None:
    """`kernel` may be at most twice as wrong as `plain`, the same thing in plain PyTorch in the
    kernel's dtype, against the fp32 `reference`."""
    assert not kernel.isnan().any(), case
    error = (kernel.float() - reference).abs().max()
    floor = (plain.float() - reference).abs().max()
    assert error <= 2 * floor + atol, f"{error=:.3e} {floor=:.3e} {case=}"
