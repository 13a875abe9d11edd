"""Floors of a step: for each operation the larger of bytes over bandwidth and operations over rate.

Operations are taken one after the other, with no launch cost and no overlap, so no implementation
that runs them in this form is faster. Times are microseconds, on one rank of a tensor-parallel
group.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from beam_trt.config.hardware import Gpu
from beam_trt.config.mapping import Mapping
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import Precision, QuantConfig

MATRIX_EFFICIENCY = 0.8
"""Share of a dense tensor-core peak that a large product reaches: 790 of 989 TFLOPS in bf16 and
1370-1580 of 1979 in FP8 were measured on an H200."""

BANDWIDTH_EFFICIENCY = 0.9
"""Share of the published bandwidth where the GPU table has no achievable figure."""

LINK_EFFICIENCY = 0.89
"""Share of the link's published rate that an all-reduce reaches."""

ALL_REDUCE_LATENCY_US = 4.0

WEIGHT_BYTES = {
    Precision.FP32: 4.0,
    Precision.BF16: 2.0,
    Precision.FP8: 1.0,
    Precision.NVFP4: 0.5 + 1 / 16,
}
"""Bytes an element, NVFP4 with its block scales."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step to price. Decode: `num_tokens` sequences of `context` tokens each, one new token
    each. Context phase: one sequence of `num_tokens` new tokens, nothing before them."""

    num_tokens: int
    context: int
    is_decode: bool = True
    num_logits: int | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """Cost of one operation in one layer: bytes through memory, floating-point operations at the
    rate of `precision`, or bytes through the link (an all-reduce)."""

    name: str
    num_bytes: float
    flops: float = 0.0
    precision: Precision = Precision.BF16
    link_bytes: float = 0.0


class Roofline:
    """Prices the steps of one model on one GPU of a tensor-parallel group."""

    def __init__(
        self,
        config: ModelConfig,
        quant: QuantConfig,
        mapping: Mapping,
        gpu: Gpu,
        kv_bytes: float = 2.0,
    ) -> None:
        mapping.validate(config)
        self.config, self.quant, self.mapping, self.gpu = config, quant, mapping, gpu
        self.kv_bytes = kv_bytes
        self.bandwidth = 1e9 * (gpu.achievable_gb_s or BANDWIDTH_EFFICIENCY * gpu.bandwidth_gb_s)

    def step_us(self, step: Step) -> dict[str, float]:
        """Microseconds of each operation over all layers, by name; the sum is the step's floor."""
        times: dict[str, float] = {}
        for layer_idx in range(self.config.num_hidden_layers):
            for operation in self.layer(layer_idx, step):
                times[operation.name] = times.get(operation.name, 0.0) + self.time_us(operation)
        head = self._head(step)
        times[head.name] = self.time_us(head)
        return times

    def time_us(self, operation: Operation) -> float:
        if operation.link_bytes:
            tp = self.mapping.tp_size
            if tp == 1:
                return 0.0
            link = self.gpu.link_gb_s * 1e9 * LINK_EFFICIENCY
            moved = 2 * (tp - 1) / tp * operation.link_bytes
            return 2 * ALL_REDUCE_LATENCY_US + moved / link * 1e6
        return 1e6 * max(
            operation.num_bytes / self.bandwidth,
            operation.flops / (self._tflops(operation.precision) * 1e12 * MATRIX_EFFICIENCY),
        )

    def _tflops(self, precision: Precision) -> float:
        """Peak of the widest native format the operands can be fed in: FP4 weights run as FP8, and
        FP8 as bf16, where the tensor cores have no such mode."""
        gpu = self.gpu
        if precision is Precision.NVFP4:
            return gpu.nvfp4_tflops or gpu.fp8_tflops or gpu.bf16_tflops
        if precision is Precision.FP8:
            return gpu.fp8_tflops or gpu.bf16_tflops
        return gpu.bf16_tflops

    def layer(self, layer_idx: int, step: Step) -> Iterator[Operation]:
        """The operations of one decoder layer on one rank."""
        config, mapping, n = self.config, self.mapping, step.num_tokens
        hidden, tp = config.hidden_size, mapping.tp_size
        q_width = mapping.num_local_heads(config) * config.head_dim
        kv_width = mapping.num_local_kv_heads(config) * config.head_dim
        precision = self.quant.linear_precision(is_expert=False)
        act = WEIGHT_BYTES[precision]
        yield self._gemm("qkv+gate", n, 2 * (q_width + kv_width), hidden, precision)
        yield self._attention(layer_idx, step, q_width, kv_width)
        yield Operation("qk-norm, rope, KV write", n * (q_width + 2 * kv_width) * 4)
        yield Operation("output gate", n * q_width * (4 + act))
        yield self._gemm("o_proj", n, hidden, q_width, precision)
        yield Operation("all-reduce x2", 0.0, link_bytes=2 * n * hidden * 2)
        yield Operation("norm boundaries x2", 2 * n * hidden * (6 + act))
        if config.is_moe(layer_idx):
            yield from self._experts(n)
        else:
            inner = config.intermediate_size // tp
            yield self._gemm("dense gate_up", n, 2 * inner, hidden, precision)
            yield Operation("dense SwiGLU", n * inner * (4 + act))
            yield self._gemm("dense down", n, hidden, inner, precision)

    def _gemm(self, name: str, m: int, n: int, k: int, precision: Precision) -> Operation:
        width = WEIGHT_BYTES[precision]
        return Operation(
            name, n * k * width + m * k * width + m * n * 2, 2.0 * m * n * k, precision
        )

    def _attention(self, layer_idx: int, step: Step, q_width: int, kv_width: int) -> Operation:
        n, window = step.num_tokens, self.config.sliding_window
        is_full = self.config.is_full(layer_idx)
        name = "attention full" if is_full else "attention sliding"
        if step.is_decode:
            seen = step.context if is_full else min(step.context, window)
            moved = n * (seen * 2 * kv_width * self.kv_bytes + (2 * q_width + 2 * kv_width) * 2)
            return Operation(name, moved, 4.0 * n * seen * q_width)
        pairs = n * (n + 1) / 2
        if not is_full and n > window:
            pairs = window * (window + 1) / 2 + (n - window) * window
        moved = n * (2 * kv_width * self.kv_bytes + 2 * q_width * 2)
        return Operation(name, moved, 4.0 * pairs * q_width)

    def _experts(self, n: int) -> Iterator[Operation]:
        config, mapping = self.config, self.mapping
        hidden, ep = config.hidden_size, mapping.ep_size
        precision = self.quant.linear_precision(is_expert=True)
        width = WEIGHT_BYTES[precision]
        inner = config.moe_intermediate_size // mapping.moe_tp_size
        hit = distinct_experts(config, n) / ep
        rows = n * config.num_experts_per_tok / ep
        logits = config.num_experts
        moved: float = logits * hidden * 4 + n * (hidden * 2 + logits * 4)
        yield Operation("router", moved, 2.0 * n * hidden * logits)
        moved = hit * 2 * inner * hidden * width + rows * (hidden * width + inner * 4)
        yield Operation("experts gate_up", moved, 4.0 * rows * inner * hidden, precision)
        yield Operation("experts SwiGLU", rows * inner * (4 + width))
        moved = hit * inner * hidden * width + rows * (inner * width + hidden * 2)
        yield Operation("experts down", moved, 2.0 * rows * hidden * inner, precision)
        yield Operation("experts combine", rows * hidden * 2 + n * hidden * 2)

    def _head(self, step: Step) -> Operation:
        rows = step.num_tokens if step.num_logits is None else step.num_logits
        n, k = self.config.vocab_size // self.mapping.tp_size, self.config.hidden_size
        moved = n * k * 2 + rows * k * 2 + rows * n * 4
        return Operation("lm_head", moved, 2.0 * rows * n * k)


def distinct_experts(config: ModelConfig, num_tokens: int) -> float:
    """Expected experts that at least one of `num_tokens` tokens chooses, when each takes its top-k
    uniformly and independently: E * (1 - (1 - k/E)^n)."""
    share = config.num_experts_per_tok / config.num_experts
    return config.num_experts * (1 - (1 - share) ** num_tokens)
