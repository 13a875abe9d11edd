"""Registration of `moe`, `moe_fp8` and `moe_nvfp4`."""

from collections.abc import Callable

import torch
from beam_trt_plugins.moe.tiles import route, run
from beam_trt_plugins.projection import activations
from beam_trt_plugins.projection.op import fp8_weight, nvfp4_weight, plain_weight
from beam_trt_plugins.registry import define, kept


def _plain(x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    return x.float()


def _fp8(x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    return activations.fp8_per_token(x)


def _nvfp4(input_scale: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Quantizer of [tiles, rows, K] whose tiles belong to `experts`, each with its input_scale."""

    def quantize(x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        return activations.nvfp4(x, input_scale[experts].view(-1, 1, 1))

    return quantize


def _moe_cpu(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    expert_idx: torch.Tensor,
    expert_weights: torch.Tensor,
    first_expert: int,
) -> torch.Tensor:
    routing = route(expert_idx, expert_weights, first_expert, gate_up.shape[0])
    return run(x, routing, plain_weight(gate_up), plain_weight(down), down.shape[2], _plain, _plain)


def _moe_fp8_cpu(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    gate_up_scale: torch.Tensor,
    down: torch.Tensor,
    down_scale: torch.Tensor,
    expert_idx: torch.Tensor,
    expert_weights: torch.Tensor,
    first_expert: int,
) -> torch.Tensor:
    routing = route(expert_idx, expert_weights, first_expert, gate_up.shape[0])
    first, second = fp8_weight(gate_up, gate_up_scale), fp8_weight(down, down_scale)
    return run(
        activations.fp8_per_token(x), routing, first, second, down.shape[2], _plain, _fp8, x.dtype
    )


def _moe_nvfp4_cpu(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    gate_up_scale: torch.Tensor,
    gate_up_scale_2: torch.Tensor,
    gate_up_input_scale: torch.Tensor,
    down: torch.Tensor,
    down_scale: torch.Tensor,
    down_scale_2: torch.Tensor,
    down_input_scale: torch.Tensor,
    expert_idx: torch.Tensor,
    expert_weights: torch.Tensor,
    first_expert: int,
) -> torch.Tensor:
    routing = route(expert_idx, expert_weights, first_expert, gate_up.shape[0])
    first = nvfp4_weight(gate_up, gate_up_scale, gate_up_scale_2)
    second = nvfp4_weight(down, down_scale, down_scale_2)
    inner_size, quantize = 2 * down.shape[2], _nvfp4(down_input_scale)
    if _is_uniform(gate_up_input_scale):
        quantized = activations.nvfp4(x, gate_up_input_scale[:1])
        return run(quantized, routing, first, second, inner_size, _plain, quantize, x.dtype)
    return run(x, routing, first, second, inner_size, _nvfp4(gate_up_input_scale), quantize)


def _is_uniform(input_scale: torch.Tensor) -> bool:
    """Experts of one layer usually share it; then x is quantized once and not for each expert."""
    same = kept(input_scale, "_is_uniform", lambda: (input_scale == input_scale[0]).all())
    return bool(same)


def _moe_fake(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    expert_idx: torch.Tensor,
    expert_weights: torch.Tensor,
    first_expert: int,
) -> torch.Tensor:
    return torch.empty_like(x, dtype=torch.float32)


def _moe_fp8_fake(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    gate_up_scale: torch.Tensor,
    down: torch.Tensor,
    down_scale: torch.Tensor,
    expert_idx: torch.Tensor,
    expert_weights: torch.Tensor,
    first_expert: int,
) -> torch.Tensor:
    return torch.empty_like(x, dtype=torch.float32)


def _moe_nvfp4_fake(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    gate_up_scale: torch.Tensor,
    gate_up_scale_2: torch.Tensor,
    gate_up_input_scale: torch.Tensor,
    down: torch.Tensor,
    down_scale: torch.Tensor,
    down_scale_2: torch.Tensor,
    down_input_scale: torch.Tensor,
    expert_idx: torch.Tensor,
    expert_weights: torch.Tensor,
    first_expert: int,
) -> torch.Tensor:
    return torch.empty_like(x, dtype=torch.float32)


_ROUTED = "Tensor expert_idx, Tensor expert_weights, int first_expert) -> Tensor"

OPS = (
    define(f"moe(Tensor x, Tensor gate_up, Tensor down, {_ROUTED}", _moe_cpu, _moe_fake),
    define(
        "moe_fp8(Tensor x, Tensor gate_up, Tensor gate_up_scale, Tensor down, Tensor down_scale, "
        + _ROUTED,
        _moe_fp8_cpu,
        _moe_fp8_fake,
    ),
    define(
        "moe_nvfp4(Tensor x, Tensor gate_up, Tensor gate_up_scale, Tensor gate_up_scale_2, "
        "Tensor gate_up_input_scale, Tensor down, Tensor down_scale, Tensor down_scale_2, "
        "Tensor down_input_scale, " + _ROUTED,
        _moe_nvfp4_cpu,
        _moe_nvfp4_fake,
    ),
)
