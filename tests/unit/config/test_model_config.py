"""ModelConfig against transformers' BeamConfig, and every value that cannot be right."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from checkpoints import small_config
from transformers import BeamConfig

from beam_trt.config.model import ModelConfig
from beam_trt.errors import CheckpointError, ConfigError


def hf(**changes: Any) -> dict[str, Any]:
    """config.json of the small model, as transformers writes it, then changed by hand."""
    values: dict[str, Any] = json.loads(small_config().to_json_string(use_diff=False))
    return values | changes


def message(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_hf(hf(**changes), "here/config.json")
    text = str(caught.value)
    assert text.startswith("here/config.json: ")
    return text


def test_values_are_those_of_transformers() -> None:
    theirs = small_config()
    ours = ModelConfig.from_hf(hf())
    for field in dataclasses.fields(ModelConfig):
        if field.name in ("rope_theta", "eos_token_ids", "dtype"):
            continue
        expected = getattr(theirs, field.name)
        found = getattr(ours, field.name)
        assert found == (tuple(expected) if isinstance(expected, list) else expected), field.name
    assert ours.rope_theta == theirs.rope_parameters["sliding_attention"]["rope_theta"]
    assert ours.eos_token_ids == (1,)


def test_published_schedule() -> None:
    """Layers of the full model, from its public description."""
    config = ModelConfig.from_hf(json.loads(BeamConfig().to_json_string(use_diff=False)))
    full = [i for i in range(52) if config.is_full(i)]
    assert full == [5, 11, 17, 23, 29, 35, 41, 47, 51]
    assert [i for i in range(52) if not config.is_moe(i)] == [0, 1, 2]
    assert (config.num_full_layers, config.num_sliding_layers) == (9, 43)
    assert config.num_experts == 256


def test_dict_round_trip() -> None:
    config = ModelConfig.from_hf(hf(eos_token_id=[3, 4]))
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_frozen() -> None:
    config = ModelConfig.from_hf(hf())
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.hidden_size = 1  # type: ignore[misc]


def test_unused_softcap_may_be_null() -> None:
    assert ModelConfig.from_hf(hf(final_logit_softcapping=None)).final_logit_softcapping is None


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_both_spellings_of_dtype(key: str) -> None:
    values = hf()
    values.pop("dtype", None)
    assert ModelConfig.from_hf(values | {key: "float32"}).dtype == "float32"


SIZES = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "sliding_window",
    "moe_intermediate_size",
    "num_experts",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
]


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_are_positive(key: str, value: int) -> None:
    assert f"{key}: expected a positive number, found {value}" in message(**{key: value})


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize(("value", "found"), [(None, "nothing"), ("8", "'8'"), (True, "True")])
def test_sizes_are_integers(key: str, value: Any, found: str) -> None:
    assert f"{key}: expected int, found {found}" in message(**{key: value})


def rope(**sliding: Any) -> dict[str, Any]:
    layer = {"rope_type": "default", "rope_theta": 10000.0, **sliding}
    return {"sliding_attention": layer, "full_attention": None}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"head_dim": 15}, "head_dim: expected an even number for RoPE, found 15"),
    (
        {"num_attention_heads": 6},
        "num_attention_heads: expected a multiple of num_key_value_heads 4, found 6",
    ),
    ({"sliding_window": 1}, "sliding_window: expected at least 2, found 1"),
    ({"rms_norm_eps": 0.0}, "rms_norm_eps: expected > 0, found 0.0"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps: expected a number, found 'small'"),
    ({"rms_norm_eps": float("inf")}, "rms_norm_eps: expected a finite number, found inf"),
    ({"routed_scaling_factor": 10**400}, "routed_scaling_factor: expected a finite number"),
    ({"final_logit_softcapping": 0}, "final_logit_softcapping: expected > 0 or null, found 0"),
    ({"final_logit_softcapping": -30.0}, "final_logit_softcapping: expected > 0 or null"),
    ({"routed_scaling_factor": None}, "routed_scaling_factor: expected a number, found None"),
    ({"dtype": "float16"}, "dtype: expected one of bfloat16, float32, found 'float16'"),
    ({"eos_token_id": 256}, "eos_token_id: expected ids within 0..255, found 256"),
    ({"eos_token_id": [1, -1]}, "eos_token_id: expected ids within 0..255, found -1"),
    ({"eos_token_id": "end"}, "eos_token_id: expected ids within 0..255, found 'end'"),
    (
        {"layer_types": ["sliding_attention"] * 7},
        "layer_types: expected num_hidden_layers = 8 entries, found 7",
    ),
    (
        {"mlp_layer_types": ["dense"] * 9},
        "mlp_layer_types: expected num_hidden_layers = 8 entries, found 9",
    ),
    (
        {"layer_types": ["chunked_attention"] * 8},
        "layer_types: expected only sliding_attention and full_attention, found chunked_attention",
    ),
    (
        {"mlp_layer_types": ["moe"] * 8},
        "mlp_layer_types: expected only dense and sparse, found moe",
    ),
    ({"layer_types": None}, "layer_types: expected a list with one name a layer, found None"),
    ({"mlp_layer_types": [1] * 8}, "mlp_layer_types: expected a list with one name a layer"),
    ({"n_group": 3}, "n_group: expected a divisor of num_experts 16"),
    ({"n_group": 16}, "leaves at least 2 experts a group, found 16"),
    ({"topk_group": 5}, "topk_group: expected within 1..n_group 4, found 5"),
    (
        {"num_experts_per_tok": 9},
        "num_experts_per_tok: expected at most topk_group * experts per group = 8, found 9",
    ),
    ({"rope_parameters": None}, "rope_parameters: expected an object keyed by layer type"),
    (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        "rope_parameters: expected an object keyed by layer type",
    ),
    (
        {"rope_parameters": {"full_attention": None}},
        "rope_parameters: expected an object keyed by layer type",
    ),
    (
        {"rope_parameters": rope() | {"full_attention": {"rope_theta": 1e4}}},
        "rope_parameters.full_attention: expected null",
    ),
    (
        {"rope_parameters": rope(rope_type="yarn")},
        "rope_parameters.sliding_attention: expected rope_type 'default'",
    ),
    ({"rope_parameters": rope(rope_theta=0)}, "sliding_attention.rope_theta: expected > 0"),
    (
        {"rope_parameters": rope(rope_theta=float("nan"))},
        "rope_theta: expected a finite number, found nan",
    ),
    ({"rope_parameters": rope(rope_theta=None)}, "rope_theta: expected a number, found None"),
    ({"hidden_act": "gelu"}, "hidden_act: expected 'silu', found 'gelu'"),
    ({"tie_word_embeddings": True}, "tie_word_embeddings: expected False, found True"),
    ({"attention_bias": True}, "attention_bias: expected False, found True"),
    ({"norm_topk_prob": False}, "norm_topk_prob: expected True, found False"),
]


@pytest.mark.parametrize(("changes", "expected"), WRONG, ids=[str(c)[:80] for c, _ in WRONG])
def test_values_that_cannot_be_right(changes: dict[str, Any], expected: str) -> None:
    assert expected in message(**changes)


def test_router_values_do_not_matter_without_moe_layers() -> None:
    config = ModelConfig.from_hf(hf(mlp_layer_types=["dense"] * 8, n_group=3))
    assert not config.has_moe


def test_not_a_beam_model() -> None:
    with pytest.raises(CheckpointError) as caught:
        ModelConfig.from_hf({"model_type": "llama"}, "x/config.json")
    assert "x/config.json: not a Beam checkpoint: model_type is 'llama'" in str(caught.value)
    assert "expected 'beam'" in str(caught.value)


def test_folder_errors(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        ModelConfig.from_folder(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"it has no config\.json"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="expected a JSON object, found list"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="cannot be read as JSON"):
        ModelConfig.from_folder(tmp_path)
