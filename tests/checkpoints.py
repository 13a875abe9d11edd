"""Small random Beam checkpoints for tests, written by transformers itself."""

from pathlib import Path
from typing import Any

import torch
from transformers import BeamConfig, BeamForCausalLM


def small_config(**changes: Any) -> BeamConfig:
    """A BeamConfig with every feature on: published schedule, dense then MoE, grouped router."""
    values: dict[str, Any] = {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 16,
        "sliding_window": 64,
        "moe_intermediate_size": 64,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "max_position_embeddings": 4096,
        "eos_token_id": [1],
        "bos_token_id": None,
        "pad_token_id": 0,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": None,
        },
    }
    return BeamConfig(**(values | changes))


def random_model(
    config: BeamConfig, seed: int = 0, dtype: torch.dtype = torch.float32
) -> BeamForCausalLM:
    """BeamForCausalLM with weights large enough that every part matters: norms, gate_bias and the
    router bias are random too. Eager attention and eager experts."""
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    model = BeamForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            noise = torch.randn(tensor.shape, generator=generator)
            if "inv_freq" in name:
                continue
            if name.endswith("norm.weight"):
                tensor.copy_(1 + 0.2 * noise)
            elif name.endswith(("gate_bias", "e_score_correction_bias")):
                tensor.copy_(0.1 * noise)
            else:
                tensor.copy_(noise * (1.5 * tensor.shape[-1] ** -0.5))
    return model.to(dtype) if dtype == torch.float32 else _cast(model, dtype)


def _cast(model: BeamForCausalLM, dtype: torch.dtype) -> BeamForCausalLM:
    """Everything but the router, which stays FP32."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if "e_score_correction_bias" in name or name.endswith("mlp.gate.weight"):
            continue
        if "inv_freq" not in name:
            tensor.data = tensor.data.to(dtype)
    model.config.dtype = dtype
    return model


def write_checkpoint(
    folder: Path,
    config: BeamConfig | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "5GB",
) -> BeamForCausalLM:
    """Save a random model (no tokenizer) to `folder` as transformers does, and return it."""
    model = random_model(config or small_config(), seed, dtype)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model
