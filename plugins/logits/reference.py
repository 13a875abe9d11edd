"""The truth of `logits`."""

import torch


def logits(x: torch.Tensor, weight: torch.Tensor, softcap: float | None) -> torch.Tensor:
    """softcap * tanh(x @ weight.T / softcap) in fp32: [n, V]."""
    raw = x.float() @ weight.float().T
    return raw if softcap is None else softcap * torch.tanh(raw / softcap)
