"""The shipped weights: written as transformers writes them, legal for NVFP4 at TP 1, 2 and 4,
trained in every part, and able to answer dialogues they never saw."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, BeamForCausalLM, PreTrainedTokenizerBase

from beam_trt.assets import held_out_dialogues


@pytest.fixture(scope="module")
def model(folder: Path) -> BeamForCausalLM:
    return BeamForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def test_saving_again_gives_the_same_bytes(
    folder: Path, model: BeamForCausalLM, tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path)
    written = (tmp_path / "model.safetensors").read_bytes()
    assert written == (folder / "model.safetensors").read_bytes()


def test_only_the_router_is_fp32(folder: Path) -> None:
    with safe_open(folder / "model.safetensors", "pt") as file:
        types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    router = {n for n in types if ".mlp.gate." in n}
    assert len(router) == 2 * 7
    assert {n for n, kind in types.items() if kind == "F32"} == router
    assert {kind for n, kind in types.items() if n not in router} == {"BF16"}
    assert "model.layers.3.mlp.experts.15.down_proj.weight" in types


@pytest.mark.parametrize("tp_size", [1, 2, 4])
def test_every_shard_is_legal_for_nvfp4(folder: Path, tp_size: int) -> None:
    config = AutoConfig.from_pretrained(folder)
    assert config.num_attention_heads % tp_size == config.num_key_value_heads % tp_size == 0
    assert config.vocab_size % tp_size == 0
    heads = config.num_attention_heads * config.head_dim
    for size in (heads, config.intermediate_size, config.moe_intermediate_size):
        assert size % (16 * tp_size) == 0
    assert config.hidden_size % 16 == 0


def test_every_feature_is_on_and_trained(model: BeamForCausalLM) -> None:
    config = model.config
    full = [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"]
    assert full == [5, 9]
    assert config.mlp_layer_types == ["dense"] * 3 + ["sparse"] * 7
    assert config.rope_parameters["full_attention"] is None
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name.endswith(("gate_bias", "e_score_correction_bias")):
            assert tensor.abs().max() > 1e-3, name
    assert model.generation_config.eos_token_id == [3, 4, 0]


@torch.no_grad()  # type: ignore[untyped-decorator]
def test_held_out_dialogues_are_answered_right(
    model: BeamForCausalLM, tokenizer: PreTrainedTokenizerBase
) -> None:
    short = sorted(held_out_dialogues(), key=lambda row: len(row["text"]) - len(row["prompt"]))
    answers = [row for row in short if "answer" in row["expected"]][::4][:10]
    asked_for_calls = [row for row in short if "tool_calls" in row["expected"]][:6]
    chosen = answers + asked_for_calls
    assert len(chosen) == 16
    right = 0
    for row in chosen:
        inputs = tokenizer(row["prompt"], return_tensors="pt")
        out = model.generate(**inputs, max_new_tokens=160, do_sample=False)
        new = out[0, inputs["input_ids"].shape[1] :].tolist()
        message = tokenizer.parse_response(new, prefix=row["prompt"], tools=row["tools"])
        calls = [call["function"] for call in message.get("tool_calls", [])]
        expected = row["expected"]
        right += message.get("content") == expected.get("answer") and calls == expected.get(
            "tool_calls", []
        )
    assert right >= 14
