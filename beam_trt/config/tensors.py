"""The one table of an engine's tensors: name, dtype and shape on a rank.

`engine.shard` writes it, `model` reads it, tests walk it. Names are ours, not the checkpoint's:
projections that share an input are packed into one matrix, experts are stacked.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from beam_trt.config.mapping import Mapping
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import NVFP4_BLOCK, Precision, QuantConfig
from beam_trt.errors import ConfigError

BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1}
"""safetensors dtype names used in an engine, and their sizes."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One engine tensor on one rank: safetensors dtype name and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count * BYTES[self.dtype]


def layer_prefix(layer_idx: int) -> str:
    return f"layers.{layer_idx}."


def engine_tensors(
    config: ModelConfig, quant: QuantConfig, mapping: Mapping
) -> Iterator[TensorSpec]:
    """Every tensor in `rank{N}.safetensors`.

    With D head_dim, q/kv the local heads, H hidden, F/I the local dense/expert intermediate, E the
    local experts, V the local vocabulary:

        embed_tokens [V, H]     lm_head [V, H]      norm [H]
        layers.L.{input,post_attention,pre_feedforward,post_feedforward}_norm [H]
        layers.L.attention.qkvg  [(q + kv + kv + q) * D, H]   rows: q, k, v, gate
        layers.L.attention.o     [H, q * D]
        layers.L.attention.{q,k}_norm [D]    .gate_bias [q]
        layers.L.mlp.gate_up     [2 F, H]  gate rows first    .down [H, F]
        layers.L.moe.router [num_experts, H] F32      .router_bias [num_experts] F32
        layers.L.moe.gate_up     [E, 2 I, H]     .down [E, H, I]

    A linear X is `X.weight`, with `X.weight_scale` F32 [rows] (experts [E, rows]) in FP8, and in
    NVFP4 U8 `X.weight` [.., K/2] (low nibble = even column), `X.weight_scale` E4M3 [.., K/16],
    `X.weight_scale_2` and `X.input_scale` F32 [1] (experts [E]). Raises ConfigError where NVFP4
    blocks do not fit a rank's shard.
    """
    mapping.validate(config)
    plain = "F32" if quant.precision is Precision.FP32 else "BF16"
    hidden, dim = config.hidden_size, config.head_dim
    heads, kv_heads = mapping.num_local_heads(config), mapping.num_local_kv_heads(config)
    vocab = config.vocab_size // mapping.tp_size
    yield TensorSpec("embed_tokens", plain, (vocab, hidden))
    for layer_idx in range(config.num_hidden_layers):
        at = layer_prefix(layer_idx)
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            yield TensorSpec(f"{at}{norm}_norm", plain, (hidden,))
        yield TensorSpec(f"{at}attention.q_norm", plain, (dim,))
        yield TensorSpec(f"{at}attention.k_norm", plain, (dim,))
        yield TensorSpec(f"{at}attention.gate_bias", plain, (heads,))
        other = quant.linear_precision(is_expert=False)
        rows = (2 * heads + 2 * kv_heads) * dim
        yield from _linear(f"{at}attention.qkvg", other, plain, (rows, hidden))
        yield from _linear(f"{at}attention.o", other, plain, (hidden, heads * dim))
        if config.is_moe(layer_idx):
            experts = mapping.num_local_experts(config)
            inner = config.moe_intermediate_size // mapping.moe_tp_size
            expert = quant.linear_precision(is_expert=True)
            yield TensorSpec(f"{at}moe.router", "F32", (config.num_experts, hidden))
            yield TensorSpec(f"{at}moe.router_bias", "F32", (config.num_experts,))
            yield from _linear(f"{at}moe.gate_up", expert, plain, (experts, 2 * inner, hidden))
            yield from _linear(f"{at}moe.down", expert, plain, (experts, hidden, inner))
        else:
            inner = config.intermediate_size // mapping.tp_size
            yield from _linear(f"{at}mlp.gate_up", other, plain, (2 * inner, hidden))
            yield from _linear(f"{at}mlp.down", other, plain, (hidden, inner))
    yield TensorSpec("norm", plain, (hidden,))
    yield TensorSpec("lm_head", plain, (vocab, hidden))


def _linear(
    name: str, precision: Precision, plain: str, shape: tuple[int, ...]
) -> Iterator[TensorSpec]:
    lead, columns = shape[:-1], shape[-1]
    if precision is Precision.NVFP4:
        if columns % NVFP4_BLOCK:
            raise ConfigError(
                f"{name}: its {columns} input columns on one rank are no multiple of "
                f"{NVFP4_BLOCK}, which NVFP4 needs. Use a smaller tp_size, or split experts with "
                "ep_size instead."
            )
        per_matrix = shape[:-2] or (1,)
        yield TensorSpec(f"{name}.weight", "U8", (*lead, columns // 2))
        yield TensorSpec(f"{name}.weight_scale", "F8_E4M3", (*lead, columns // NVFP4_BLOCK))
        yield TensorSpec(f"{name}.weight_scale_2", "F32", per_matrix)
        yield TensorSpec(f"{name}.input_scale", "F32", per_matrix)
    elif precision is Precision.FP8:
        yield TensorSpec(f"{name}.weight", "F8_E4M3", shape)
        yield TensorSpec(f"{name}.weight_scale", "F32", lead)
    else:
        yield TensorSpec(f"{name}.weight", plain, shape)
