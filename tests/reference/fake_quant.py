"""transformers' Beam with quantize-dequantize around each linear: the truth for quantized engines.

Weights are an engine's, dequantized to fp32; a product rounds to the model dtype. Activations go
through the quantizers that tests/kernels/test_projection_op.py proves equal to ModelOpt's and
compressed-tensors' own.
"""

from collections.abc import Callable
from types import MethodType

import torch
from beam_trt_plugins.projection import activations, reference
from checkpoints import random_model
from reference.engine_weights import engine_weights
from torch.nn import functional
from transformers import BeamForCausalLM
from transformers.models.beam.modeling_beam import BeamExperts

from beam_trt.config.mapping import Mapping
from beam_trt.config.quant import Precision, QuantConfig

Quantizer = Callable[[torch.Tensor], torch.Tensor]


def fake_quantized(
    model: BeamForCausalLM, precision: Precision, dtype: torch.dtype
) -> BeamForCausalLM:
    """A copy of bf16 `model` that runs in `dtype` on quantized weights and activations."""
    copy = random_model(model.config, dtype=dtype)
    copy.load_state_dict(model.state_dict())
    weights = engine_weights(model, Mapping(), QuantConfig(precision))
    for layer_idx, layer in enumerate(copy.model.layers):
        at = f"layers.{layer_idx}."
        attention = layer.self_attn
        rows = [p.weight.shape[0] for p in (attention.q_proj, attention.k_proj, attention.v_proj)]
        matrix, quantizer = _linear(weights, f"{at}attention.qkvg", precision)
        parts = matrix.split([*rows, matrix.shape[0] - sum(rows)])
        names = ("q_proj", "k_proj", "v_proj", "gate_proj")
        for name, part in zip(names, parts, strict=True):
            _replace(getattr(attention, name), part, quantizer)
        _replace(attention.o_proj, *_linear(weights, f"{at}attention.o", precision))
        if isinstance(getattr(layer.mlp, "experts", None), BeamExperts):
            replace_experts(layer.mlp.experts, weights, f"{at}moe", precision)
        else:
            matrix, quantizer = _linear(weights, f"{at}mlp.gate_up", precision)
            for linear, part in zip(
                (layer.mlp.gate_proj, layer.mlp.up_proj), matrix.chunk(2), strict=True
            ):
                _replace(linear, part, quantizer)
            _replace(layer.mlp.down_proj, *_linear(weights, f"{at}mlp.down", precision))
    return copy


def _linear(
    weights: dict[str, torch.Tensor], name: str, precision: Precision
) -> tuple[torch.Tensor, Quantizer]:
    """fp32 weight, dequantized, and the quantizer of its input."""
    weight, scale = weights[f"{name}.weight"], weights[f"{name}.weight_scale"]
    if precision is Precision.FP8:
        return reference.dequantize_fp8(weight, scale), activations.fp8_per_token
    dequantized = reference.dequantize_nvfp4(weight, scale, weights[f"{name}.weight_scale_2"])
    input_scale = weights[f"{name}.input_scale"][:1]
    return dequantized, lambda x: activations.nvfp4(x, input_scale)


def _replace(linear: torch.nn.Linear, weight: torch.Tensor, quantizer: Quantizer) -> None:
    linear.forward = lambda x: functional.linear(quantizer(x), weight).to(x.dtype)


def replace_experts(
    experts: BeamExperts, weights: dict[str, torch.Tensor], name: str, precision: Precision
) -> None:
    gate_up, quantize_x = _linear(weights, f"{name}.gate_up", precision)
    down, quantize_inner = _linear(weights, f"{name}.down", precision)

    def forward(
        _: BeamExperts, x: torch.Tensor, expert_idx: torch.Tensor, expert_weights: torch.Tensor
    ) -> torch.Tensor:
        out = torch.zeros_like(x)
        quantized = quantize_x(x)
        for expert in range(gate_up.shape[0]):
            token, choice = (expert_idx == expert).nonzero(as_tuple=True)
            inner = functional.linear(quantized[token], gate_up[expert]).to(x.dtype)
            gate, up = inner.float().chunk(2, dim=-1)
            inner = (functional.silu(gate) * up).to(x.dtype)
            row = functional.linear(quantize_inner(inner), down[expert]).to(x.dtype)
            out.index_add_(0, token, (row * expert_weights[token, choice, None]).to(x.dtype))
        return out

    experts.forward = MethodType(forward, experts)
