"""Which piece of which checkpoint tensor goes where in each rank's file. Integers only.

Names and shapes of the engine's side are `config.tensors`; the checkpoint's are `checkpoint.names`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from beam_trt.checkpoint import names
from beam_trt.config.mapping import Mapping
from beam_trt.config.model import ModelConfig

Range = tuple[int, int]
"""First and one past the last row or column."""

ROWS, COLUMNS = 0, 1


@dataclass(frozen=True, slots=True)
class Part:
    """Rows or columns of one checkpoint tensor, for every rank.

    source: checkpoint name; of a linear without its `.weight`.
    axis: ROWS or COLUMNS.
    ranges: per rank the elements it gets along `axis`, None where it gets nothing.
    """

    source: str
    axis: int
    ranges: tuple[Range | None, ...]


Group = tuple[Part, ...]
"""Parts stacked on top of each other into one matrix: they share an input, so they share scales."""


def groups_of(name: str, config: ModelConfig, mapping: Mapping) -> Iterator[Group]:
    """What makes up the engine tensor `name` (a linear without `.weight`), in order: one group, or
    one an expert. `mapping`'s own rank does not matter."""
    if not name.startswith("layers."):
        yield _whole_model(name, config, mapping)
        return
    _, layer_text, rest = name.split(".", 2)
    layer_idx = int(layer_text)
    if rest.startswith("moe.") and rest not in ("moe.router", "moe.router_bias"):
        for expert_idx in range(config.num_experts):
            yield _expert(rest, layer_idx, expert_idx, config, mapping)
    else:
        yield _layer(rest, layer_idx, config, mapping)


def _whole_model(name: str, config: ModelConfig, mapping: Mapping) -> Group:
    if name == "norm":
        return (_everywhere(names.FINAL_NORM, config.hidden_size, mapping),)
    source = {"embed_tokens": names.EMBED_TOKENS, "lm_head": names.LM_HEAD}[name]
    return (_even(source, ROWS, config.vocab_size, mapping),)


def _layer(rest: str, layer_idx: int, config: ModelConfig, mapping: Mapping) -> Group:
    hidden, dim = config.hidden_size, config.head_dim
    q_rows = config.num_attention_heads * dim
    match rest:
        case "attention.qkvg":
            kv = _kv_ranges(config, mapping)
            return (
                _even(names.q_proj(layer_idx), ROWS, q_rows, mapping),
                Part(names.k_proj(layer_idx), ROWS, kv),
                Part(names.v_proj(layer_idx), ROWS, kv),
                _even(names.attention_gate_proj(layer_idx), ROWS, q_rows, mapping),
            )
        case "attention.o":
            return (_even(names.o_proj(layer_idx), COLUMNS, q_rows, mapping),)
        case "attention.gate_bias":
            heads = config.num_attention_heads
            return (_even(names.gate_bias(layer_idx), ROWS, heads, mapping),)
        case "attention.q_norm":
            return (_everywhere(names.q_norm(layer_idx), dim, mapping),)
        case "attention.k_norm":
            return (_everywhere(names.k_norm(layer_idx), dim, mapping),)
        case "mlp.gate_up":
            inner = config.intermediate_size
            both = [names.mlp_proj(layer_idx, proj) for proj in ("gate_proj", "up_proj")]
            return tuple(_even(source, ROWS, inner, mapping) for source in both)
        case "mlp.down":
            source = names.mlp_proj(layer_idx, "down_proj")
            return (_even(source, COLUMNS, config.intermediate_size, mapping),)
        case "moe.router":
            return (_everywhere(names.router_weight(layer_idx), config.num_experts, mapping),)
        case "moe.router_bias":
            return (_everywhere(names.router_bias(layer_idx), config.num_experts, mapping),)
    norm = names.layer_norm(layer_idx, rest.removesuffix("_norm") + "_layernorm")
    return (_everywhere(norm, hidden, mapping),)


def _expert(
    rest: str, layer_idx: int, expert_idx: int, config: ModelConfig, mapping: Mapping
) -> Group:
    inner = config.moe_intermediate_size // mapping.moe_tp_size

    def held(rank: Mapping) -> Range | None:
        first = rank.first_expert(config)
        if not first <= expert_idx < first + rank.num_local_experts(config):
            return None
        return rank.moe_tp_rank * inner, (rank.moe_tp_rank + 1) * inner

    ranges = _per_rank(mapping, held)
    if rest == "moe.down":
        return (Part(names.expert_proj(layer_idx, expert_idx, "down_proj"), COLUMNS, ranges),)
    return tuple(
        Part(names.expert_proj(layer_idx, expert_idx, proj), ROWS, ranges)
        for proj in ("gate_proj", "up_proj")
    )


def _kv_ranges(config: ModelConfig, mapping: Mapping) -> tuple[Range | None, ...]:
    rows = mapping.num_local_kv_heads(config) * config.head_dim

    def held(rank: Mapping) -> Range:
        first = rank.first_kv_head(config) * config.head_dim
        return first, first + rows

    return _per_rank(mapping, held)


def _even(source: str, axis: int, size: int, mapping: Mapping) -> Part:
    share = size // mapping.tp_size
    ranges = _per_rank(mapping, lambda rank: (rank.rank * share, (rank.rank + 1) * share))
    return Part(source, axis, ranges)


def _everywhere(source: str, size: int, mapping: Mapping) -> Part:
    return Part(source, ROWS, ((0, size),) * mapping.tp_size)


def _per_rank(
    mapping: Mapping, held: Callable[[Mapping], Range | None]
) -> tuple[Range | None, ...]:
    return tuple(held(mapping.with_rank(rank)) for rank in range(mapping.tp_size))
