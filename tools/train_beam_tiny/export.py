"""Writes weights as transformers' own BeamForCausalLM.save_pretrained does, in bf16 with an FP32
router."""

from pathlib import Path

import torch
from transformers import BeamConfig, BeamForCausalLM, GenerationConfig

from .shape import SHAPE


def beam_model(state: dict[str, torch.Tensor] | None = None) -> BeamForCausalLM:
    """An FP32 BeamForCausalLM of beam-tiny's shape, holding `state` (its own parameter names) if
    given, else freshly initialised."""
    model = BeamForCausalLM(BeamConfig(**SHAPE)).eval()
    if state is not None:
        model.load_state_dict(state, strict=True)
    return model


def save(model: BeamForCausalLM, folder: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors into `folder`.

    The router's weight and selection bias stay FP32, as BeamForCausalLM itself keeps them; all
    else is rounded to bf16 once. The FP32 model is left as it was.
    """
    config = BeamConfig(**SHAPE, dtype="bfloat16")
    rounded = BeamForCausalLM._from_config(config, dtype=torch.bfloat16)
    rounded.load_state_dict(model.state_dict(), strict=True)
    rounded.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=SHAPE["eos_token_id"], pad_token_id=SHAPE["pad_token_id"]
    )
    rounded.save_pretrained(folder)
