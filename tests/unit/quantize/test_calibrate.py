"""Calibration against hooks on transformers' whole model."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import small_config, write_checkpoint
from tensors import rewrite
from transformers import AutoModelForCausalLM

from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.checkpoint.names import Site
from beam_trt.checkpoint.reader import CheckpointReader
from beam_trt.errors import CheckpointError
from beam_trt.quantize.calibrate import Calibrator, LayerCalibration


def calibrate(folder: Path, samples: list[list[int]]) -> list[LayerCalibration]:
    with CheckpointReader(CheckpointIndex.open(folder)) as reader:
        return list(Calibrator(reader, samples).layers())


@torch.no_grad()
def observed(folder: Path, samples: list[list[int]]) -> tuple[dict[Any, float], dict[int, Any]]:
    """Maxima at each module's input and tokens per expert, as the whole model sees them."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, experts_implementation="eager"
    ).eval()
    maxima: dict[Any, float] = defaultdict(float)
    tokens: dict[int, Any] = {}

    def watch(module: torch.nn.Module, key: tuple[int, Site]) -> None:
        def hook(_: Any, inputs: tuple[torch.Tensor, ...]) -> None:
            maxima[key] = max(maxima[key], float(inputs[0].abs().max()))

        module.register_forward_pre_hook(hook)

    for layer_idx, layer in enumerate(model.model.layers):
        watch(layer.self_attn.q_proj, (layer_idx, Site.ATTENTION_IN))
        watch(layer.self_attn.o_proj, (layer_idx, Site.ATTENTION_OUT))
        if hasattr(layer.mlp, "experts"):
            watch(layer.mlp.experts, (layer_idx, Site.EXPERT_IN))
            tokens[layer_idx] = torch.zeros(layer.mlp.experts.num_experts, dtype=torch.int64)

            def count(_: Any, inputs: tuple[torch.Tensor, ...], at: int = layer_idx) -> None:
                tokens[at] += inputs[1].flatten().bincount(minlength=len(tokens[at]))

            layer.mlp.experts.register_forward_pre_hook(count)
            apply_gate = layer.mlp.experts._apply_gate

            def gate(x: torch.Tensor, at: int = layer_idx, inner: Any = apply_gate) -> Any:
                out = inner(x)
                key = (at, Site.EXPERT_OUT)
                maxima[key] = max(maxima[key], float(out.abs().max()))
                return out

            layer.mlp.experts._apply_gate = gate
        else:
            watch(layer.mlp.gate_proj, (layer_idx, Site.DENSE_IN))
            watch(layer.mlp.down_proj, (layer_idx, Site.DENSE_OUT))
    for ids in samples:
        model(torch.tensor([ids]), use_cache=False)
    return dict(maxima), tokens


def check(folder: Path, samples: list[list[int]]) -> list[LayerCalibration]:
    layers = calibrate(folder, samples)
    maxima, tokens = observed(folder, samples)
    found = {(c.layer_idx, site): value for c in layers for site, value in c.input_amax.items()}
    assert found == maxima
    for calibration in layers:
        expected = tokens.get(calibration.layer_idx)
        assert calibration.expert_tokens == (() if expected is None else tuple(expected.tolist()))
    return layers


def test_maxima_are_those_of_the_whole_model(source: Path, samples: list[list[int]]) -> None:
    layers = check(source, samples)
    assert sum(layers[4].expert_tokens) == 4 * sum(map(len, samples))


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": 2, "num_key_value_heads": 8, "topk_group": 4, "num_experts_per_tok": 1},
        {"layer_types": ["full_attention"] * 3, "mlp_layer_types": ["sparse"] * 3},
        {"layer_types": ["sliding_attention"] * 3, "mlp_layer_types": ["dense"] * 3},
        {"num_experts": 6, "n_group": 3, "topk_group": 1, "num_experts_per_tok": 2},
    ],
)
def test_other_shapes(tmp_path: Path, changes: dict[str, Any]) -> None:
    schedule = {"mlp_layer_types": ["dense", "sparse", "sparse"]}
    config = small_config(num_hidden_layers=3, **(schedule | changes))
    write_checkpoint(tmp_path, config, seed=3, dtype=torch.bfloat16)
    check(tmp_path, [[5, 9, 200, 9], list(range(70))])


def test_gradients_of_the_caller_are_left_alone(source: Path) -> None:
    with CheckpointReader(CheckpointIndex.open(source)) as reader:
        for _ in Calibrator(reader, [[1, 2]]).layers():
            assert torch.is_grad_enabled()
            break


def test_activations_that_are_not_finite(source: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, small_config(num_hidden_layers=2), dtype=torch.bfloat16)

    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.input_layernorm.weight"][3] = float("nan")

    rewrite(tmp_path, damage)
    with pytest.raises(CheckpointError) as caught:
        calibrate(tmp_path, [[1, 2, 3]])
    assert "layer 1: the calibration forward gives nan at attention_in" in str(caught.value)
