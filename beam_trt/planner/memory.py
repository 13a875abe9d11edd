"""Where one GPU's memory goes: weights by part, KV by lifetime, activations, and what is left.

All sizes are bytes on one rank. Weights are summed over the engine's own tensor table, so they are
what `build` writes.
"""

from dataclasses import dataclass

from beam_trt.config.hardware import Gpu
from beam_trt.config.mapping import Mapping
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import QuantConfig
from beam_trt.config.tensors import engine_tensors

RUNTIME_BYTES = 3 * 2**30
"""CUDA context, NCCL buffers, CUDA graphs and kernels' workspaces: an allowance, not a measure."""

USABLE_FRACTION = 0.95
"""Share of a GPU's memory that a process can plan on; the rest is fragmentation and the driver."""

PARTS = ("embedding", "attention", "dense MLP", "experts", "router and norms", "head")


def weights_by_part(config: ModelConfig, quant: QuantConfig, mapping: Mapping) -> dict[str, int]:
    """Bytes of weights on one rank, by PARTS. ConfigError where the split is impossible."""
    sizes = dict.fromkeys(PARTS, 0)
    for spec in engine_tensors(config, quant, mapping):
        sizes[_part(spec.name)] += spec.num_bytes
    return sizes


def _part(name: str) -> str:
    if name.startswith("embed_tokens"):
        return "embedding"
    if name.startswith("lm_head"):
        return "head"
    for mark, part in (
        (".qkvg.", "attention"),
        (".attention.o.", "attention"),
        (".mlp.", "dense MLP"),
        (".moe.gate_up.", "experts"),
        (".moe.down.", "experts"),
    ):
        if mark in name:
            return part
    return "router and norms"


@dataclass(frozen=True, slots=True)
class KvCost:
    """Bytes of KV on one rank. A sequence of n tokens costs n * full_per_token +
    min(n, window) * sliding_per_token: full-attention layers keep every token, sliding layers the
    last `window`."""

    full_per_token: int
    sliding_per_token: int
    window: int

    def sequence(self, num_tokens: int) -> int:
        kept = min(num_tokens, self.window)
        return num_tokens * self.full_per_token + kept * self.sliding_per_token


def kv_cost(config: ModelConfig, mapping: Mapping, kv_bytes: int = 2) -> KvCost:
    """KV of one token in one layer: K and V of this rank's heads, `kv_bytes` an element."""
    layer = 2 * mapping.num_local_kv_heads(config) * config.head_dim * kv_bytes
    return KvCost(
        full_per_token=layer * config.num_full_layers,
        sliding_per_token=layer * config.num_sliding_layers,
        window=config.sliding_window,
    )


def activation_bytes(
    config: ModelConfig, mapping: Mapping, max_num_tokens: int, max_batch_size: int
) -> int:
    """Largest set of buffers alive at once in a step of `max_num_tokens` tokens: residual, branch
    and its fp32 partial sum, the widest packed projection, the MLP's or experts' intermediate with
    the experts' outputs, and fp32 logits of `max_batch_size` rows over the whole vocabulary."""
    hidden = config.hidden_size
    heads = 2 * mapping.num_local_heads(config) + 2 * mapping.num_local_kv_heads(config)
    attention = heads * config.head_dim * 2
    dense = 3 * (config.intermediate_size // mapping.tp_size) * 2 if config.has_dense else 0
    inner = config.moe_intermediate_size // mapping.moe_tp_size
    moe = config.num_experts_per_tok * (3 * inner * 2 + hidden * 2) if config.has_moe else 0
    residual = hidden * (2 + 2 + 4)
    logits = max_batch_size * config.vocab_size * 4
    return max_num_tokens * (residual + max(attention, dense, moe)) + logits


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """One GPU's memory in bytes; `free_for_kv` may be negative when the weights do not fit."""

    usable: int
    weights: dict[str, int]
    activations: int
    runtime: int
    kv: KvCost

    @property
    def free_for_kv(self) -> int:
        return self.usable - sum(self.weights.values()) - self.activations - self.runtime

    def max_concurrency(self, context: int) -> int:
        """Sequences of `context` tokens that fit at once."""
        return max(0, self.free_for_kv // self.kv.sequence(context))

    def max_context(self) -> int:
        """Longest single sequence that fits, in tokens."""
        left = self.free_for_kv - self.kv.window * self.kv.sliding_per_token
        if left <= 0:
            return 0
        return left // self.kv.full_per_token if self.kv.full_per_token else 2**31


def memory_plan(
    config: ModelConfig,
    quant: QuantConfig,
    mapping: Mapping,
    gpu: Gpu,
    *,
    max_num_tokens: int,
    max_batch_size: int,
    kv_bytes: int = 2,
) -> MemoryPlan:
    """Memory of one rank on `gpu`. ConfigError where the model cannot be split this way."""
    return MemoryPlan(
        usable=int(gpu.memory_gb * 1e9 * USABLE_FRACTION),
        weights=weights_by_part(config, quant, mapping),
        activations=activation_bytes(config, mapping, max_num_tokens, max_batch_size),
        runtime=RUNTIME_BYTES,
        kv=kv_cost(config, mapping, kv_bytes),
    )
