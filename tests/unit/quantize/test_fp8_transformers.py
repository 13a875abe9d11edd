"""FP8 checkpoints in transformers with compressed-tensors, which we did not write."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.quantization import QuantizationConfig, QuantizationStrategy
from tensors import read_all
from transformers import AutoModelForCausalLM, AutoTokenizer

from beam_trt import quantize
from beam_trt.assets import held_out_texts
from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.config.quant import FP8_MAX, Precision, QuantConfig


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, experts_implementation="eager", attn_implementation="eager"
    )
    return model.eval()


@pytest.fixture(scope="module", params=[False, True], ids=["all linears", "experts only"])
def quantized(
    request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("fp8") / "out"
    quantize.run(source, folder, QuantConfig(Precision.FP8, experts_only=request.param))
    return folder


def put_dequantized(model: Any, tensors: dict[str, torch.Tensor]) -> list[Any]:
    """Write weight * scale into a plain model; the linears (not experts) that were quantized."""

    def value(name: str) -> torch.Tensor:
        return tensors[f"{name}.weight"].float() * tensors[f"{name}.weight_scale"]

    linears = []
    for name, module in model.named_modules():
        if f"{name}.weight_scale" in tensors:
            module.weight.data.copy_(value(name))
            linears.append(module)
        if name.endswith(".experts"):
            for e in range(module.num_experts):
                gate_up = torch.cat((value(f"{name}.{e}.gate_proj"), value(f"{name}.{e}.up_proj")))
                module.gate_up_proj.data[e].copy_(gate_up)
                module.down_proj.data[e].copy_(value(f"{name}.{e}.down_proj"))
    return linears


def per_token(_: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
    """Round a linear's input to E4M3 with one scale a token, as the checkpoint asks for."""
    scale = inputs[0].abs().amax(dim=-1, keepdim=True) / FP8_MAX
    return ((inputs[0] / scale).to(torch.float8_e4m3fn).float() * scale,)


@torch.no_grad()
def test_logits_are_those_of_dynamic_per_token_arithmetic(source: Path, quantized: Path) -> None:
    """transformers quantizes activations of its nn.Linear modules; routed experts, which it fuses,
    it dequantizes on loading."""
    reloaded, plain = load(quantized), load(source)
    ids = torch.arange(100)[None]
    original = plain(ids).logits
    tensors = read_all(quantized)
    linears = put_dequantized(plain, tensors)
    attention_too = "model.layers.0.self_attn.q_proj.weight_scale" in tensors
    assert len(linears) == (5 * 5 + 3 * 3 if attention_too else 0)
    for linear in linears:
        linear.register_forward_pre_hook(per_token)
    expected, found = plain(ids).logits, reloaded(ids).logits
    assert (found - expected).abs().max() <= 1e-4
    assert (found - original).abs().max() > 1e-2


def test_metadata_is_what_compressed_tensors_defines(quantized: Path) -> None:
    declared = CheckpointIndex.open(quantized).raw_config["quantization_config"]
    parsed = QuantizationConfig.model_validate(declared)
    assert parsed.format == "float-quantized"
    assert parsed.ignore is not None
    assert parsed.ignore[0] == "lm_head"
    assert {"model.layers.3.mlp.gate", "model.layers.4.mlp.gate"} <= set(parsed.ignore)
    (scheme,) = parsed.config_groups.values()
    assert scheme.weights.strategy == QuantizationStrategy.CHANNEL
    assert scheme.input_activations.strategy == QuantizationStrategy.TOKEN
    assert scheme.input_activations.dynamic is True


@torch.no_grad()
def perplexity(model: Any, tokenizer: Any, texts: list[str]) -> float:
    total, count = 0.0, 0
    for text in texts:
        ids = torch.tensor([tokenizer(text, add_special_tokens=False).input_ids[:256]])
        logits = model(ids).logits[0, :-1].float()
        total += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        count += ids.shape[1] - 1
    return math.exp(total / count)


@pytest.mark.slow
def test_perplexity_of_beam_tiny_hardly_moves(beam_tiny: Path, tmp_path: Path) -> None:
    quantize.run(beam_tiny, tmp_path / "fp8", QuantConfig(Precision.FP8))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "fp8")
    texts = held_out_texts()[:12]
    before = perplexity(load(beam_tiny), tokenizer, texts)
    after = perplexity(load(tmp_path / "fp8"), tokenizer, texts)
    assert abs(math.log(after / before)) < 0.05, f"{before=} {after=}"
