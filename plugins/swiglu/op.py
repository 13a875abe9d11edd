"""Registration of `swiglu`."""

import torch
from beam_trt_plugins.registry import define
from beam_trt_plugins.row_tiles import silu


def activate(gate_up: torch.Tensor) -> torch.Tensor:
    """fp32 silu(gate) * up over the two halves of the last dimension, not yet rounded."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return silu(gate).mul_(up)


def _cpu(gate_up: torch.Tensor) -> torch.Tensor:
    return activate(gate_up).to(gate_up.dtype)


def _fake(gate_up: torch.Tensor) -> torch.Tensor:
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))


OPS = (define("swiglu(Tensor gate_up) -> Tensor", _cpu, _fake),)
