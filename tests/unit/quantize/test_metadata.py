"""Exclude lists at the published size, where a careless pattern matches ten layers at once."""

import fnmatch
import json

import pytest
from transformers import BeamConfig

from beam_trt.checkpoint import names
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.quantize.metadata import hf_quant_config, quantization_config


@pytest.fixture(scope="module")
def published() -> ModelConfig:
    """52 layers, 256 experts."""
    return ModelConfig.from_hf(json.loads(BeamConfig().to_json_string(use_diff=False)))


def modules(config: ModelConfig, quant: QuantConfig) -> dict[str, bool]:
    """Every linear's name and whether it is quantized, written out independently of the patterns:
    everything but lm_head and routers, or routed experts alone."""
    found = {"lm_head": False}
    for layer in range(config.num_hidden_layers):
        for proj in ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj"):
            found[f"model.layers.{layer}.self_attn.{proj}"] = not quant.experts_only
        mlp = f"model.layers.{layer}.mlp"
        if layer >= 3:
            found[f"{mlp}.gate"] = False
        for proj in ("gate_proj", "up_proj", "down_proj"):
            if layer >= 3:
                for expert in (0, 1, 10, 255):
                    found[f"{mlp}.experts.{expert}.{proj}"] = True
            else:
                found[f"{mlp}.{proj}"] = not quant.experts_only
    return found


@pytest.mark.parametrize("experts_only", [False, True])
@pytest.mark.parametrize("precision", [Precision.NVFP4, Precision.FP8])
def test_patterns_match_exactly_what_is_not_quantized(
    published: ModelConfig, precision: Precision, experts_only: bool
) -> None:
    quant = QuantConfig(precision, experts_only)
    declared = quantization_config(published, quant)
    assert declared is not None
    for name, is_quantized in modules(published, quant).items():
        hits = [p for p in declared["ignore"] if fnmatch.fnmatchcase(name, p)]
        assert bool(hits) != is_quantized, f"{name}: {hits}"


def test_both_nvfp4_files_say_the_same(published: ModelConfig) -> None:
    quant = QuantConfig(Precision.NVFP4)
    sidecar = hf_quant_config(published, quant)["quantization"]
    declared = quantization_config(published, quant)
    assert declared is not None
    assert declared["ignore"] == sidecar["exclude_modules"]
    assert declared["quant_algo"] == sidecar["quant_algo"] == "NVFP4"
    assert len(sidecar["exclude_modules"]) == 2 + 49


def test_plain_checkpoints_say_nothing(published: ModelConfig) -> None:
    assert quantization_config(published, QuantConfig(Precision.BF16)) is None


def test_published_sizes(published: ModelConfig) -> None:
    """Bytes by the public description: 501.27 B parameters; experts 986.5 GB in bf16, 277 GB in
    NVFP4; 37,632 expert matrices become 150,528 tensors."""

    def experts(quant: QuantConfig) -> list[names.ExpectedTensor]:
        return [t for t in names.checkpoint_tensors(published, quant) if ".experts." in t.name]

    def elements(tensors: list[names.ExpectedTensor]) -> int:
        total = 0
        for tensor in tensors:
            count = 1
            for size in tensor.shape:
                count *= size
            total += count
        return total

    bf16, nvfp4 = experts(QuantConfig(Precision.BF16)), experts(QuantConfig(Precision.NVFP4))
    assert (len(bf16), len(nvfp4)) == (37_632, 150_528)
    assert round(elements(bf16) * 2 / 1e9, 1) == 986.5
    # U8 and E4M3 elements are bytes.
    assert round(elements(nvfp4) / 1e9) == 277
    whole = list(names.checkpoint_tensors(published, QuantConfig(Precision.BF16)))
    assert round(elements(whole) / 1e9, 2) == 501.27
