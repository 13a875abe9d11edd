"""Linears and experts of one rank: which op a weight's precision calls for.

The arithmetic is in `beam_trt_plugins`; these only hold its weights.
"""

from dataclasses import dataclass

import beam_trt_plugins  # noqa: F401  (registers the ops)
import torch

from beam_trt.config.quant import Precision

Weights = dict[str, torch.Tensor]
_ops = torch.ops.beam_trt


@dataclass(frozen=True, slots=True)
class Linear:
    """`name.weight` with its scales, and the dtype of its result: the model's, or fp32 where the
    result is a partial sum that `Communicator.all_reduce` completes."""

    precision: Precision
    tensors: tuple[torch.Tensor, ...]
    out_dtype: torch.dtype

    @classmethod
    def of(
        cls, weights: Weights, name: str, precision: Precision, out_dtype: torch.dtype
    ) -> "Linear":
        return cls(precision, _tensors(weights, name, precision), out_dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[num_tokens, K] -> [num_tokens, N] of `out_dtype`."""
        if self.precision is Precision.NVFP4:
            out = _ops.linear_nvfp4(x, *self.tensors, self.out_dtype)
        elif self.precision is Precision.FP8:
            out = _ops.linear_fp8(x, *self.tensors, self.out_dtype)
        else:
            out = _ops.linear(x, *self.tensors, self.out_dtype)
        assert isinstance(out, torch.Tensor)
        return out


@dataclass(frozen=True, slots=True)
class Experts:
    """`name.gate_up` and `name.down` of this rank's experts, the first of which is `first_expert`
    of the whole model."""

    precision: Precision
    tensors: tuple[torch.Tensor, ...]
    first_expert: int

    @classmethod
    def of(cls, weights: Weights, name: str, precision: Precision, first_expert: int) -> "Experts":
        tensors = [_tensors(weights, f"{name}.{part}", precision) for part in ("gate_up", "down")]
        return cls(precision, (*tensors[0], *tensors[1]), first_expert)

    def __call__(
        self, x: torch.Tensor, expert_idx: torch.Tensor, expert_weights: torch.Tensor
    ) -> torch.Tensor:
        """[num_tokens, H] -> fp32 [num_tokens, H], this rank's part of the weighted sum."""
        args = (x, *self.tensors, expert_idx, expert_weights, self.first_expert)
        if self.precision is Precision.NVFP4:
            out = _ops.moe_nvfp4(*args)
        elif self.precision is Precision.FP8:
            out = _ops.moe_fp8(*args)
        else:
            out = _ops.moe(*args)
        assert isinstance(out, torch.Tensor)
        return out


def _tensors(weights: Weights, name: str, precision: Precision) -> tuple[torch.Tensor, ...]:
    """Weight and scales in the order in which the ops take them."""
    parts = {
        Precision.NVFP4: ("weight", "weight_scale", "weight_scale_2", "input_scale"),
        Precision.FP8: ("weight", "weight_scale"),
    }.get(precision, ("weight",))
    return tuple(weights[f"{name}.{part}"] for part in parts)
