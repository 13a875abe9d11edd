"""The one table of a Beam checkpoint's tensors: names, dtypes and shapes on disk.

Also says which linears share an input, and so must share their scales. Names are those that
transformers' save_pretrained writes (experts one by one, 2-D); the packed 3-D expert names that
also occur are accepted on reading. Needs no torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import NVFP4_BLOCK, Precision, QuantConfig
from beam_trt.errors import ConfigError

EMBED_TOKENS = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"
LAYER_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)

PLAIN_DTYPES = ("BF16", "F32")
"""What an unquantized weight may be stored in."""


class Site(StrEnum):
    """One input inside a layer that linears read; the linears of one site and one expert form a
    group that shares weight_scale_2, and all of a site shares input_scale."""

    ATTENTION_IN = "attention_in"
    ATTENTION_OUT = "attention_out"
    DENSE_IN = "dense_in"
    DENSE_OUT = "dense_out"
    EXPERT_IN = "expert_in"
    EXPERT_OUT = "expert_out"

    @property
    def is_expert(self) -> bool:
        return self in (Site.EXPERT_IN, Site.EXPERT_OUT)


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """One tensor a checkpoint must hold, with the safetensors dtypes it may have."""

    name: str
    dtypes: tuple[str, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Linear:
    """One decoder linear: module path without `.weight`, rows out, columns in."""

    name: str
    out_features: int
    in_features: int

    @property
    def weight(self) -> str:
        return f"{self.name}.weight"


@dataclass(frozen=True, slots=True)
class LinearGroup:
    """Linears that runtimes fuse into one matrix: same input, so one weight_scale_2 for all."""

    layer_idx: int
    site: Site
    expert_idx: int | None
    linears: tuple[Linear, ...]


def layer(layer_idx: int) -> str:
    """Prefix of a layer, with its dot."""
    return f"model.layers.{layer_idx}."


def layer_norm(layer_idx: int, norm: str) -> str:
    return f"{layer(layer_idx)}{norm}.weight"


def q_proj(layer_idx: int) -> str:
    return f"{layer(layer_idx)}self_attn.q_proj"


def k_proj(layer_idx: int) -> str:
    return f"{layer(layer_idx)}self_attn.k_proj"


def v_proj(layer_idx: int) -> str:
    return f"{layer(layer_idx)}self_attn.v_proj"


def o_proj(layer_idx: int) -> str:
    return f"{layer(layer_idx)}self_attn.o_proj"


def attention_gate_proj(layer_idx: int) -> str:
    """The attention's output gate, not the MLP's gate_proj."""
    return f"{layer(layer_idx)}self_attn.gate_proj"


def gate_bias(layer_idx: int) -> str:
    return f"{layer(layer_idx)}self_attn.gate_bias"


def q_norm(layer_idx: int) -> str:
    return f"{layer(layer_idx)}self_attn.q_norm.weight"


def k_norm(layer_idx: int) -> str:
    return f"{layer(layer_idx)}self_attn.k_norm.weight"


def mlp_proj(layer_idx: int, proj: str) -> str:
    """`proj` of a dense layer: gate_proj, up_proj or down_proj."""
    return f"{layer(layer_idx)}mlp.{proj}"


def expert_proj(layer_idx: int, expert_idx: int, proj: str) -> str:
    """`proj` of one routed expert: gate_proj, up_proj or down_proj."""
    return f"{layer(layer_idx)}mlp.experts.{expert_idx}.{proj}"


def router(layer_idx: int) -> str:
    """Module path of the router."""
    return f"{layer(layer_idx)}mlp.gate"


def router_weight(layer_idx: int) -> str:
    return f"{router(layer_idx)}.weight"


def router_bias(layer_idx: int) -> str:
    return f"{router(layer_idx)}.e_score_correction_bias"


def packed_gate_up(layer_idx: int) -> str:
    """All experts' gate and up rows as one [experts, 2 * intermediate, hidden], gate first."""
    return f"{layer(layer_idx)}mlp.experts.gate_up_proj"


def packed_down(layer_idx: int) -> str:
    """All experts' down matrices as one [experts, hidden, intermediate]."""
    return f"{layer(layer_idx)}mlp.experts.down_proj"


def linear_groups(config: ModelConfig, layer_idx: int) -> Iterator[LinearGroup]:
    """Every quantizable linear of one layer, in groups that share their scales."""
    hidden, dim = config.hidden_size, config.head_dim
    q_rows, kv_rows = config.num_attention_heads * dim, config.num_key_value_heads * dim
    attention_in = (
        Linear(q_proj(layer_idx), q_rows, hidden),
        Linear(k_proj(layer_idx), kv_rows, hidden),
        Linear(v_proj(layer_idx), kv_rows, hidden),
        Linear(attention_gate_proj(layer_idx), q_rows, hidden),
    )
    yield LinearGroup(layer_idx, Site.ATTENTION_IN, None, attention_in)
    attention_out = (Linear(o_proj(layer_idx), hidden, q_rows),)
    yield LinearGroup(layer_idx, Site.ATTENTION_OUT, None, attention_out)
    if not config.is_moe(layer_idx):
        names = [mlp_proj(layer_idx, proj) for proj in ("gate_proj", "up_proj", "down_proj")]
        yield from _mlp_groups(layer_idx, None, names, hidden, config.intermediate_size)
        return
    for expert_idx in range(config.num_experts):
        names = [
            expert_proj(layer_idx, expert_idx, proj)
            for proj in ("gate_proj", "up_proj", "down_proj")
        ]
        yield from _mlp_groups(layer_idx, expert_idx, names, hidden, config.moe_intermediate_size)


def _mlp_groups(
    layer_idx: int, expert_idx: int | None, names: list[str], hidden: int, inner: int
) -> Iterator[LinearGroup]:
    into, out = (
        (Site.DENSE_IN, Site.DENSE_OUT) if expert_idx is None else (Site.EXPERT_IN, Site.EXPERT_OUT)
    )
    gate, up, down = names
    first = (Linear(gate, inner, hidden), Linear(up, inner, hidden))
    yield LinearGroup(layer_idx, into, expert_idx, first)
    yield LinearGroup(layer_idx, out, expert_idx, (Linear(down, hidden, inner),))


def checkpoint_tensors(config: ModelConfig, quant: QuantConfig) -> Iterator[ExpectedTensor]:
    """Every tensor of a checkpoint, layer by layer.

    A linear X is `X.weight` [out, in], plain BF16 or F32; in FP8 (compressed-tensors) `X.weight`
    F8_E4M3 and `X.weight_scale` F32 or BF16 [out, 1]; in NVFP4 (ModelOpt) `X.weight` U8
    [out, in / 2], `X.weight_scale` F8_E4M3 [out, in / 16], `X.weight_scale_2` and `X.input_scale`
    F32 []. Raises ConfigError where NVFP4's blocks of 16 columns do not fit.
    """
    vocab = (config.vocab_size, config.hidden_size)
    yield ExpectedTensor(EMBED_TOKENS, PLAIN_DTYPES, vocab)
    for layer_idx in range(config.num_hidden_layers):
        yield from plain_layer_tensors(config, layer_idx)
        for group in linear_groups(config, layer_idx):
            precision = quant.linear_precision(group.site.is_expert)
            for linear in group.linears:
                yield from linear_tensors(linear, precision)
    yield ExpectedTensor(FINAL_NORM, PLAIN_DTYPES, (config.hidden_size,))
    yield ExpectedTensor(LM_HEAD, PLAIN_DTYPES, vocab)


def plain_layer_tensors(config: ModelConfig, layer_idx: int) -> Iterator[ExpectedTensor]:
    """What is never quantized in one layer: norms, gate bias, router."""
    hidden, dim = config.hidden_size, config.head_dim
    for norm in LAYER_NORMS:
        yield ExpectedTensor(layer_norm(layer_idx, norm), PLAIN_DTYPES, (hidden,))
    yield ExpectedTensor(q_norm(layer_idx), PLAIN_DTYPES, (dim,))
    yield ExpectedTensor(k_norm(layer_idx), PLAIN_DTYPES, (dim,))
    yield ExpectedTensor(gate_bias(layer_idx), PLAIN_DTYPES, (config.num_attention_heads,))
    if config.is_moe(layer_idx):
        # A router in bf16 picks other experts than the trained one.
        experts = config.num_experts
        yield ExpectedTensor(router_weight(layer_idx), ("F32",), (experts, hidden))
        yield ExpectedTensor(router_bias(layer_idx), ("F32",), (experts,))


def linear_tensors(linear: Linear, precision: Precision) -> Iterator[ExpectedTensor]:
    """The tensors of one linear in one format; see `checkpoint_tensors`."""
    name, rows, columns = linear.name, linear.out_features, linear.in_features
    if precision is Precision.NVFP4:
        if columns % NVFP4_BLOCK:
            raise ConfigError(
                f"{name}: NVFP4 needs input columns in multiples of {NVFP4_BLOCK}, found "
                f"{columns}. Use fp8 or bf16 for this model."
            )
        yield ExpectedTensor(f"{name}.weight", ("U8",), (rows, columns // 2))
        scales = (rows, columns // NVFP4_BLOCK)
        yield ExpectedTensor(f"{name}.weight_scale", ("F8_E4M3",), scales)
        yield ExpectedTensor(f"{name}.weight_scale_2", ("F32",), ())
        yield ExpectedTensor(f"{name}.input_scale", ("F32",), ())
    elif precision is Precision.FP8:
        yield ExpectedTensor(f"{name}.weight", ("F8_E4M3",), (rows, columns))
        yield ExpectedTensor(f"{name}.weight_scale", ("F32", "BF16"), (rows, 1))
    else:
        yield ExpectedTensor(f"{name}.weight", PLAIN_DTYPES, (rows, columns))
