"""The architecture of a Beam model, as its `config.json` states it, checked once.

Knows nothing about weights or ranks. Field names are those of transformers' BeamConfig.
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from beam_trt.errors import CheckpointError, ConfigError

SLIDING = "sliding_attention"
FULL = "full_attention"
DENSE = "dense"
SPARSE = "sparse"
DTYPES = ("bfloat16", "float32")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One Beam architecture. Sizes are counts of elements; `layer_types` and `mlp_layer_types` have
    one entry a layer. Raises ConfigError for anything the published implementations cannot run."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    sliding_window: int
    rope_theta: float
    layer_types: tuple[str, ...]
    mlp_layer_types: tuple[str, ...]
    moe_intermediate_size: int
    num_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    routed_scaling_factor: float
    final_logit_softcapping: float | None
    dtype: str = "bfloat16"
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # In this order: the later checks divide by sizes that the first one made sure of.
        for check in (_size_problems, _schedule_problems, _router_problems):
            for problem in check(self):
                raise ConfigError(problem)

    @property
    def has_moe(self) -> bool:
        return SPARSE in self.mlp_layer_types

    @property
    def has_dense(self) -> bool:
        return DENSE in self.mlp_layer_types

    @property
    def num_full_layers(self) -> int:
        return self.layer_types.count(FULL)

    @property
    def num_sliding_layers(self) -> int:
        return self.layer_types.count(SLIDING)

    def is_full(self, layer_idx: int) -> bool:
        return self.layer_types[layer_idx] == FULL

    def is_moe(self, layer_idx: int) -> bool:
        return self.mlp_layer_types[layer_idx] == SPARSE

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ModelConfig":
        """Inverse of `to_dict`, as an engine's config.json stores it."""
        tuples = ("layer_types", "mlp_layer_types", "eos_token_ids")
        fields: dict[str, Any] = {k: tuple(v) if k in tuples else v for k, v in values.items()}
        return cls(**fields)

    @classmethod
    def from_hf(cls, raw: dict[str, Any], where: str = "config.json") -> "ModelConfig":
        """Read a Hugging Face `config.json` as a dict. Raises CheckpointError when it is not a Beam
        model and ConfigError, naming `where` and the key, when a value cannot be right."""
        if raw.get("model_type") != "beam":
            raise CheckpointError(
                f"{where}: not a Beam checkpoint: model_type is {raw.get('model_type')!r}, "
                "expected 'beam'. Give the folder of a Beam model (see `beam-trt model tiny`)."
            )
        try:
            return cls(**_read_hf(raw))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Read `folder/config.json`; CheckpointError when there is none or it is not JSON."""
        return cls.from_hf(read_hf_config(folder), str(folder / "config.json"))


def read_hf_config(folder: Path) -> dict[str, Any]:
    """The raw config.json of a checkpoint folder."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder. Give the folder of a Beam checkpoint.")
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder}: not a checkpoint: it has no config.json. "
            "Give the folder that save_pretrained wrote."
        ) from None
    except (ValueError, OSError) as error:
        raise CheckpointError(
            f"{path}: cannot be read as JSON: {error}. Fetch the file again."
        ) from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {type(raw).__name__}.")
    return raw


_REQUIRED = {
    "vocab_size": int,
    "hidden_size": int,
    "intermediate_size": int,
    "num_hidden_layers": int,
    "num_attention_heads": int,
    "num_key_value_heads": int,
    "head_dim": int,
    "max_position_embeddings": int,
    "sliding_window": int,
    "moe_intermediate_size": int,
    "num_experts": int,
    "num_experts_per_tok": int,
    "n_group": int,
    "topk_group": int,
}


def _read_hf(raw: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, kind in _REQUIRED.items():
        values[key] = _typed(raw, key, kind)
    values["rms_norm_eps"] = _number(raw, "rms_norm_eps", 1e-6)
    values["routed_scaling_factor"] = _number(raw, "routed_scaling_factor", 1.0)
    softcap = raw.get("final_logit_softcapping")
    values["final_logit_softcapping"] = (
        None if softcap is None else _number(raw, "final_logit_softcapping", None)
    )
    values["layer_types"] = _strings(raw, "layer_types")
    values["mlp_layer_types"] = _strings(raw, "mlp_layer_types")
    values["rope_theta"] = _rope_theta(raw)
    _check_fixed(raw)
    dtype = str(raw.get("dtype") or raw.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    values["dtype"] = dtype
    values["bos_token_id"] = raw.get("bos_token_id")
    values["pad_token_id"] = raw.get("pad_token_id")
    eos = raw.get("eos_token_id")
    values["eos_token_ids"] = () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)
    return values


def _typed(raw: dict[str, Any], key: str, kind: type) -> Any:
    value = raw.get(key)
    if isinstance(value, bool) or not isinstance(value, kind):
        found = "nothing" if value is None else repr(value)
        raise ConfigError(f"{key}: expected {kind.__name__}, found {found}.")
    return value


def _number(raw: dict[str, Any], key: str, default: float | None) -> float:
    value = raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{key}: expected a number, found {value!r}.")
    if not abs(value) <= sys.float_info.max:
        raise ConfigError(f"{key}: expected a finite number, found {value!r}.")
    return float(value)


def _strings(raw: dict[str, Any], key: str) -> tuple[str, ...]:
    value = raw.get(key)
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ConfigError(f"{key}: expected a list with one name a layer, found {value!r}.")
    return tuple(value)


def _rope_theta(raw: dict[str, Any]) -> float:
    rope = raw.get("rope_parameters")
    if not isinstance(rope, dict) or set(rope) - {SLIDING, FULL} or SLIDING not in rope:
        raise ConfigError(
            "rope_parameters: expected an object keyed by layer type "
            f"({SLIDING}: {{rope_type, rope_theta}}, {FULL}: null), found {rope!r}."
        )
    if rope.get(FULL) is not None:
        raise ConfigError(
            f"rope_parameters.{FULL}: expected null, found {rope[FULL]!r}: "
            "Beam's full-attention layers have no rotary embedding."
        )
    sliding = rope[SLIDING]
    if not isinstance(sliding, dict) or sliding.get("rope_type", "default") != "default":
        raise ConfigError(
            f"rope_parameters.{SLIDING}: expected rope_type 'default' with a rope_theta, "
            f"found {sliding!r}."
        )
    theta = _number(sliding, "rope_theta", None)
    if theta <= 0:
        raise ConfigError(f"rope_parameters.{SLIDING}.rope_theta: expected > 0, found {theta}.")
    return theta


def _check_fixed(raw: dict[str, Any]) -> None:
    fixed = {
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "norm_topk_prob": True,
    }
    for key, expected in fixed.items():
        found = raw.get(key, expected)
        if found != expected:
            raise ConfigError(
                f"{key}: expected {expected!r}, found {found!r}: Beam has no other form."
            )


def _size_problems(c: ModelConfig) -> list[str]:
    problems = []
    for key in _REQUIRED:
        if getattr(c, key) < 1:
            problems.append(f"{key}: expected a positive number, found {getattr(c, key)}.")
    if c.head_dim % 2:
        problems.append(f"head_dim: expected an even number for RoPE, found {c.head_dim}.")
    if c.num_key_value_heads > 0 and c.num_attention_heads % c.num_key_value_heads:
        problems.append(
            f"num_attention_heads: expected a multiple of num_key_value_heads "
            f"{c.num_key_value_heads}, found {c.num_attention_heads}."
        )
    if c.sliding_window < 2:
        problems.append(f"sliding_window: expected at least 2, found {c.sliding_window}.")
    if not c.rms_norm_eps > 0:
        problems.append(f"rms_norm_eps: expected > 0, found {c.rms_norm_eps}.")
    if c.final_logit_softcapping is not None and not c.final_logit_softcapping > 0:
        problems.append(
            f"final_logit_softcapping: expected > 0 or null, found {c.final_logit_softcapping}."
        )
    if c.dtype not in DTYPES:
        problems.append(f"dtype: expected one of {', '.join(DTYPES)}, found {c.dtype!r}.")
    for token_id in c.eos_token_ids:
        if not isinstance(token_id, int) or not 0 <= token_id < c.vocab_size:
            problems.append(
                f"eos_token_id: expected ids within 0..{c.vocab_size - 1}, found {token_id!r}."
            )
    return problems


def _schedule_problems(c: ModelConfig) -> list[str]:
    problems = []
    for key, allowed in (("layer_types", (SLIDING, FULL)), ("mlp_layer_types", (DENSE, SPARSE))):
        names = getattr(c, key)
        if len(names) != c.num_hidden_layers:
            problems.append(
                f"{key}: expected num_hidden_layers = {c.num_hidden_layers} entries, "
                f"found {len(names)}."
            )
        unknown = sorted(set(names) - set(allowed))
        if unknown:
            problems.append(
                f"{key}: expected only {' and '.join(allowed)}, found {', '.join(unknown)}."
            )
    return problems


def _router_problems(c: ModelConfig) -> list[str]:
    if not c.has_moe:
        return []
    problems = []
    if c.num_experts % c.n_group or c.num_experts // c.n_group < 2:
        problems.append(
            f"n_group: expected a divisor of num_experts {c.num_experts} that leaves at least 2 "
            f"experts a group, found {c.n_group}."
        )
    elif not 1 <= c.topk_group <= c.n_group:
        problems.append(
            f"topk_group: expected within 1..n_group {c.n_group}, found {c.topk_group}."
        )
    elif c.num_experts_per_tok > c.topk_group * (c.num_experts // c.n_group):
        problems.append(
            f"num_experts_per_tok: expected at most topk_group * experts per group = "
            f"{c.topk_group * (c.num_experts // c.n_group)}, found {c.num_experts_per_tok}."
        )
    return problems
