"""The right files with the wrong tensors in them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import small_config

from beam_trt.checkpoint import names
from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.checkpoint.reader import CheckpointReader
from beam_trt.checkpoint.validate import validate
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.errors import CheckpointError, ConfigError

Tensors = dict[str, torch.Tensor]
Single = Callable[[Callable[[Tensors], Any]], Path]

EXPERT = "model.layers.3.mlp.experts.5.up_proj.weight"
ROUTER = "model.layers.3.mlp.gate.weight"
Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def pack(tensors: Tensors) -> None:
    """Per-expert matrices to the packed 3-D names."""
    at = "model.layers.3.mlp.experts."

    def take(expert: int, proj: str) -> torch.Tensor:
        return tensors.pop(f"{at}{expert}.{proj}.weight")

    pairs = [torch.cat((take(e, "gate_proj"), take(e, "up_proj"))) for e in range(8)]
    tensors[f"{at}gate_up_proj"] = torch.stack(pairs)
    tensors[f"{at}down_proj"] = torch.stack([take(e, "down_proj") for e in range(8)])


def message(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        validate(CheckpointIndex.open(folder))
    return str(caught.value)


def test_whole_checkpoint_is_right(checkpoint: Path) -> None:
    validate(CheckpointIndex.open(checkpoint))


def test_packed_experts_are_right_and_read_the_same(checkpoint: Path, single: Single) -> None:
    packed = CheckpointIndex.open(single(pack))
    validate(packed)
    assert EXPERT not in packed.tensors
    plain = CheckpointIndex.open(checkpoint)
    with CheckpointReader(packed) as a, CheckpointReader(plain) as b:
        for expert in (0, 5, 7):
            for proj in ("gate_proj", "up_proj", "down_proj"):
                name = f"{names.expert_proj(3, expert, proj)}.weight"
                assert torch.equal(a.tensor(name), b.tensor(name)), name
                rows, columns = slice(8, 24), slice(16, 48)
                part = b.tensor(name)[rows, columns]
                assert torch.equal(a.slice(name, rows, columns), part), name
    assert packed.find(names.expert_proj(3, 8, "up_proj") + ".weight") is None


def test_packed_and_alone(single: Single) -> None:
    def both(tensors: Tensors) -> None:
        expert = tensors[EXPERT].clone()
        pack(tensors)
        tensors[EXPERT] = expert

    text = message(single(both))
    assert f"{EXPERT} stored twice" in text


def test_packed_with_too_many_experts(single: Single) -> None:
    def grow(tensors: Tensors) -> None:
        pack(tensors)
        name = "model.layers.3.mlp.experts.down_proj"
        tensors[name] = torch.cat((tensors[name], tensors[name][:1]))

    assert "experts.down_proj in model.safetensors: expected shape [8, 64, 64]" in message(
        single(grow)
    )


def test_missing(single: Single) -> None:
    text = message(single(lambda tensors: tensors.pop(EXPERT)))
    assert f"missing tensor {EXPERT}" in text
    assert "incomplete" in text


def test_extra(single: Single) -> None:
    def add(tensors: Tensors) -> None:
        tensors["model.layers.4.input_layernorm.weight"] = torch.zeros(64)

    text = message(single(add))
    assert "found tensor model.layers.4.input_layernorm.weight, no part of" in text
    assert "4 layers, 8 experts" in text


def test_shape(single: Single) -> None:
    def cut(tensors: Tensors) -> None:
        tensors[Q_PROJ] = tensors[Q_PROJ][:-1].clone()

    assert f"{Q_PROJ} in model.safetensors: expected shape [128, 64], found [127, 64]" in message(
        single(cut)
    )


def test_attention_gate_is_not_the_mlp_gate(single: Single) -> None:
    """Both are called gate_proj; swapping them must be seen by their shapes."""

    def swap(tensors: Tensors) -> None:
        a, b = "model.layers.0.self_attn.gate_proj.weight", "model.layers.0.mlp.gate_proj.weight"
        tensors[a], tensors[b] = tensors[b][:100].clone(), tensors[a]

    assert "self_attn.gate_proj.weight in model.safetensors: expected shape [128, 64]" in message(
        single(swap)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8, torch.float8_e4m3fn])
def test_dtype(single: Single, dtype: torch.dtype) -> None:
    def cast(tensors: Tensors) -> None:
        tensors[Q_PROJ] = tensors[Q_PROJ].to(dtype)

    folder = single(cast)
    if dtype is torch.float8_e4m3fn:
        with pytest.raises(CheckpointError, match="says how the checkpoint is quantized"):
            CheckpointIndex.open(folder)
    else:
        assert f"{Q_PROJ} in model.safetensors: expected dtype BF16 or F32, found" in message(
            folder
        )


@pytest.mark.parametrize("name", [ROUTER, "model.layers.3.mlp.gate.e_score_correction_bias"])
def test_router_in_bf16(single: Single, name: str) -> None:
    def cast(tensors: Tensors) -> None:
        tensors[name] = tensors[name].bfloat16()

    text = message(single(cast))
    assert f"{name} in model.safetensors: expected the router in F32, found BF16" in text
    assert "picks other experts" in text


def test_nvfp4_needs_blocks_of_16_columns() -> None:
    config = ModelConfig.from_hf(small_config(moe_intermediate_size=72).to_dict())
    with pytest.raises(ConfigError, match="multiples of 16, found 72"):
        list(names.checkpoint_tensors(config, QuantConfig(Precision.NVFP4)))
    list(names.checkpoint_tensors(config, QuantConfig(Precision.FP8)))
