"""Muon for matrices (all matrices of one shape at once) and AdamW for everything else."""

import torch
from torch import nn

_NS = (3.4445, -4.7750, 2.0315)  # Newton-Schulz coefficients of Muon (Jordan et al., 2024)


def orthogonalized(gradients: torch.Tensor) -> torch.Tensor:
    """Nearest semi-orthogonal matrices to [count, rows, columns], by five quintic Newton-Schulz
    steps in the input's dtype; singular values land within about 0.7 to 1.2."""
    tall = gradients.shape[-2] > gradients.shape[-1]
    x = gradients.mT if tall else gradients
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = _NS
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def _as_matrices(parameter: torch.Tensor, name: str) -> torch.Tensor:
    """[count, out, in]; a fused gate_up tensor counts as two matrices an expert."""
    if name.endswith("gate_up_proj"):
        return parameter.unflatten(1, (2, -1)).flatten(0, 1)
    return parameter if parameter.dim() == 3 else parameter[None]


class Muon:
    """Momentum, orthogonalised, with Nesterov and decoupled weight decay.

    The step of an [out, in] matrix is scaled by sqrt(max(1, out / in)), so one learning rate fits
    all shapes.
    """

    def __init__(
        self, named: dict[str, nn.Parameter], momentum: float = 0.95, decay: float = 0.1,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:  # fmt: skip
        self._momentum, self._decay, self._dtype = momentum, decay, dtype
        self._groups: dict[tuple[int, int], list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in named.items():
            shape = _as_matrices(parameter, name).shape
            self._groups.setdefault((shape[1], shape[2]), []).append((name, parameter))
        self._buffers = {name: torch.zeros_like(p) for name, p in named.items()}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, rate: float) -> None:
        for (out, into), members in self._groups.items():
            updates = []
            for name, parameter in members:
                assert parameter.grad is not None, name
                buffer = self._buffers[name]
                buffer.lerp_(parameter.grad, 1 - self._momentum)
                updates.append(_as_matrices(parameter.grad.lerp(buffer, self._momentum), name))
            moved = orthogonalized(torch.cat(updates).to(self._dtype))
            scale = rate * max(1.0, out / into) ** 0.5
            for (name, parameter), update in zip(
                members, moved.split([len(u) for u in updates]), strict=True
            ):
                parameter.mul_(1 - rate * self._decay)
                target = _as_matrices(parameter, name)
                target.add_(update.to(parameter.dtype), alpha=-scale)


def split_parameters(
    model: nn.Module,
) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """(matrices for Muon, the rest for AdamW: embedding, head, router, norms, gate_bias)."""
    matrices: dict[str, nn.Parameter] = {}
    rest: dict[str, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        small = "embed_tokens" in name or "lm_head" in name or "mlp.gate.weight" in name
        (rest if parameter.dim() == 1 or small else matrices)[name] = parameter
    return matrices, rest
