"""Our engine against transformers running the same FP8 checkpoint through compressed-tensors.

transformers quantizes the activations of linears but not of fused experts, whose weights it merely
dequantizes; so its experts get the quantizers that the kernel tests prove equal to
compressed-tensors' own, and everything else is left as it loaded.
"""

from pathlib import Path

import torch
from reference.fake_quant import replace_experts
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.beam.modeling_beam import BeamExperts, BeamForCausalLM

from beam_trt.assets import held_out_texts
from beam_trt.config.build import BuildConfig
from beam_trt.config.mapping import Mapping
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.engine.build import build_engine
from beam_trt.engine.manifest import EngineConfig
from beam_trt.engine.thread_ranks import ThreadRanks
from beam_trt.model.weights import load_rank
from beam_trt.quantize import run as quantize


def load(checkpoint: Path, engine: Path, dtype: torch.dtype) -> BeamForCausalLM:
    model = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=dtype, experts_implementation="eager", attn_implementation="eager"
    ).eval()
    weights = load_rank(engine, 0)
    for layer_idx, layer in enumerate(model.model.layers):
        if isinstance(getattr(layer.mlp, "experts", None), BeamExperts):
            name = f"layers.{layer_idx}.moe"
            replace_experts(layer.mlp.experts, weights, name, Precision.FP8)
    return model


def test_logits_are_those_of_compressed_tensors_within_rounding(
    beam_tiny: Path, tmp_path: Path
) -> None:
    """The engine is at most twice as far from compressed-tensors in fp32 as compressed-tensors in
    bf16 is, in mean KL over real text, and prefers the same tokens as often."""
    checkpoint, engine = tmp_path / "fp8", tmp_path / "engine"
    quant = QuantConfig(Precision.FP8)
    quantize(beam_tiny, checkpoint, quant)
    build_engine(checkpoint, engine, quant, Mapping(), BuildConfig(1024))
    tokenizer = AutoTokenizer.from_pretrained(beam_tiny)
    texts = [held_out_texts()[0], *held_out_texts()[-6:]]
    samples = [tokenizer(text, add_special_tokens=False).input_ids[:256] for text in texts]
    exact, rounded = (load(checkpoint, engine, t) for t in (torch.float32, torch.bfloat16))
    ours: list[torch.Tensor] = []
    theirs: list[torch.Tensor] = []
    truth: list[torch.Tensor] = []
    with torch.no_grad(), ThreadRanks(EngineConfig.load(engine)) as ranks:
        for sample in samples:
            ids = torch.tensor([sample])
            ours.append(log_softmax(ranks.logits(sample).float(), -1))
            theirs.append(log_softmax(rounded(ids).logits[0].float(), -1))
            truth.append(log_softmax(exact(ids).logits[0].float(), -1))

    def kl(rows: list[torch.Tensor]) -> float:
        pairs = zip(truth, rows, strict=True)
        return torch.cat([(t.exp() * (t - r)).sum(-1) for t, r in pairs]).mean().item()

    def agreement(rows: list[torch.Tensor]) -> float:
        pairs = zip(truth, rows, strict=True)
        same = torch.cat([t.argmax(-1) == r.argmax(-1) for t, r in pairs])
        return same.float().mean().item()

    assert 0 < kl(ours) <= 2 * kl(theirs), f"{kl(ours)=:.2e} {kl(theirs)=:.2e}"
    assert agreement(ours) >= agreement(theirs) - 0.02, f"{agreement(ours)=} {agreement(theirs)=}"
