"""The truth of `moe`: loops over tokens and experts in fp32."""

from collections.abc import Callable

import torch
from beam_trt_plugins.swiglu.reference import swiglu


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def moe(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    expert_idx: torch.Tensor,
    expert_weights: torch.Tensor,
    first_expert: int,
    quantize_x: Callable[[torch.Tensor], torch.Tensor] = _same,
    quantize_inner: Callable[[torch.Tensor], torch.Tensor] = _same,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Weighted sum over each token's experts, in order of expert index: fp32 [n, H].

    Weights are fp32, already dequantized; `quantize_x` and `quantize_inner` are the activations'
    quantize-dequantize before gate_up and down; `dtype` is what gate_up's output and SwiGLU's
    round to.
    """
    out = torch.zeros(x.shape[0], x.shape[1])
    for token in range(x.shape[0]):
        row = quantize_x(x[token : token + 1].float())
        experts = sorted(zip(expert_idx[token].tolist(), expert_weights[token], strict=True))
        for expert, weight in experts:
            local = expert - first_expert
            if 0 <= local < gate_up.shape[0]:
                inner = swiglu((row @ gate_up[local].T).to(dtype)).to(dtype)
                out[token] += weight * (quantize_inner(inner.float()) @ down[local].T)[0]
    return out
