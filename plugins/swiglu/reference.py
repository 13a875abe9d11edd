"""The truth of `swiglu`."""

import torch
from torch.nn import functional


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up of [n, 2 F] in fp32: [n, F]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return functional.silu(gate) * up
