"""Quantized engines against transformers with the same quantized weights and activations."""

import pytest
import torch
from checkpoints import random_model, small_config
from reference.fake_quant import fake_quantized
from reference.paged import PagedModel
from transformers import BeamForCausalLM

from beam_trt.config.quant import Precision

IDS = torch.randint(256, (180,), generator=torch.Generator().manual_seed(3)).tolist()
QUANTIZED = [Precision.FP8, Precision.NVFP4]


@pytest.fixture(scope="module")
def model() -> BeamForCausalLM:
    return random_model(small_config(), dtype=torch.bfloat16)


def logits(model: BeamForCausalLM) -> torch.Tensor:
    return model(torch.tensor([IDS]), use_cache=False).logits[0].float()


@pytest.mark.parametrize("precision", QUANTIZED)
def test_no_further_from_the_truth_than_twice_plain_bf16(
    model: BeamForCausalLM, precision: Precision
) -> None:
    truth = logits(fake_quantized(model, precision, torch.float32))
    floor = (logits(fake_quantized(model, precision, torch.bfloat16)) - truth).abs()
    for tp_size, ep_size in ((1, 1), (2, 1), (4, 2)):
        paged = PagedModel(model, precision, tp_size, ep_size)
        error = (paged.step([("a", IDS)])["a"] - truth).abs()
        assert error.max() <= 2 * floor.max(), f"{error.max()=} {floor.max()=} {tp_size=}"
        assert error.mean() <= 2 * floor.mean(), f"{error.mean()=} {floor.mean()=} {tp_size=}"


@pytest.mark.parametrize("precision", QUANTIZED)
def test_quantization_is_seen(precision: Precision) -> None:
    """Far nearer to a bf16 model with the same quantizers than to the model before quantization.
    Two layers with every expert chosen: no routing decision turns a rounding into other experts."""
    shallow = random_model(
        small_config(
            num_hidden_layers=2,
            layer_types=["sliding_attention", "full_attention"],
            mlp_layer_types=["dense", "sparse"],
            topk_group=4,
            num_experts_per_tok=16,
        ),
        dtype=torch.bfloat16,
    )
    same = logits(fake_quantized(shallow, precision, torch.bfloat16))
    ours = PagedModel(shallow, precision).step([("a", IDS)])["a"]
    assert 2 * (ours - same).abs().mean() < (ours - logits(shallow)).abs().mean()
