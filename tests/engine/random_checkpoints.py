"""Checkpoints of random bytes in every precision: what an engine must carry over bit by bit."""

import json
from pathlib import Path

import torch
from checkpoints import small_config
from safetensors.torch import save_file
from transformers import BeamConfig

from beam_trt.checkpoint.names import checkpoint_tensors
from beam_trt.checkpoint.reader import TORCH_DTYPES
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import Precision, QuantConfig

QUANTIZATION = {
    Precision.NVFP4: {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    Precision.FP8: {"quant_method": "compressed-tensors", "format": "float-quantized"},
}


def write_random_checkpoint(
    folder: Path, quant: QuantConfig, config: BeamConfig | None = None, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Write a checkpoint whose tensors are random bytes (scales: random positive numbers, equal
    where linears are packed together); returns them by name."""
    config = config or small_config()
    config.architectures = ["BeamForCausalLM"]
    config.dtype = "float32" if quant.precision is Precision.FP32 else "bfloat16"
    raw = json.loads(config.to_json_string(use_diff=False))
    if quant.precision.is_quantized:
        raw["quantization_config"] = QUANTIZATION[quant.precision]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    scale_of_group: dict[str, torch.Tensor] = {}
    plain = "F32" if quant.precision is Precision.FP32 else "BF16"
    for expected in checkpoint_tensors(ModelConfig.from_hf(raw), quant):
        kind = expected.name.rpartition(".")[2]
        is_plain = plain in expected.dtypes and kind != "weight_scale"
        dtype = plain if is_plain else expected.dtypes[0]
        if kind in ("weight_scale_2", "input_scale"):
            group = _group(expected.name)
            fresh = torch.rand((), generator=generator) + 0.01
            tensors[expected.name] = scale_of_group.setdefault(group, fresh).clone()
        elif kind == "weight_scale":
            fresh = torch.rand(expected.shape, generator=generator) + 0.01
            tensors[expected.name] = fresh.to(TORCH_DTYPES[dtype])
        else:
            tensors[expected.name] = _random(expected.shape, dtype, generator)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


def _group(name: str) -> str:
    for proj in ("q_proj", "k_proj", "v_proj", "self_attn.gate_proj"):
        name = name.replace(proj, "self_attn.qkvg" if "." in proj else "qkvg")
    for proj in ("gate_proj", "up_proj"):
        name = name.replace(proj, "gate_up")
    return name.replace("self_attn.self_attn", "self_attn")


def _random(shape: tuple[int, ...], dtype: str, generator: torch.Generator) -> torch.Tensor:
    width = TORCH_DTYPES[dtype].itemsize
    data = torch.randint(0, 256, (*shape, width), generator=generator, dtype=torch.uint8)
    return data.view(TORCH_DTYPES[dtype]).reshape(shape)
