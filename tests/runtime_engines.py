"""Engines of one small random fp32 Beam for every rank count, with the transformers model beside
them, and what that model says."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from checkpoints import small_config, write_checkpoint

from beam_trt.config.build import BuildConfig
from beam_trt.config.mapping import Mapping
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.config.runtime import RuntimeConfig
from beam_trt.engine.build import build_engine

MAX_SEQ_LEN = 320
WINDOW = 24
TOKENS_PER_BLOCK = 16


@dataclass
class Engines:
    """`folder(tp)` is built on first use. Window 24 over blocks of 16, so that windows begin
    anywhere in a block and several blocks are freed during a test."""

    root: Path
    built: dict[int, Path] = field(default_factory=dict)

    @cached_property
    def reference(self) -> Any:
        config = small_config(
            num_hidden_layers=6, sliding_window=WINDOW, moe_intermediate_size=32, num_experts=8
        )
        return write_checkpoint(self.root / "checkpoint", config, seed=3)

    def folder(self, tp_size: int) -> Path:
        if tp_size not in self.built:
            _ = self.reference
            target = self.root / f"tp{tp_size}"
            build = BuildConfig(
                max_seq_len=MAX_SEQ_LEN,
                max_batch_size=16,
                tokens_per_block=TOKENS_PER_BLOCK,
                kv_dtype="float32",
            )
            build_engine(
                self.root / "checkpoint",
                target,
                QuantConfig(Precision.FP32),
                Mapping(tp_size=tp_size),
                build,
            )
            self.built[tp_size] = target
        return self.built[tp_size]

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> tuple[list[int], list[float]]:
        """Tokens of transformers' own generate, and their log-probabilities in one forward."""
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            whole = self.reference.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
            logits = self.reference(whole).logits[0].double().log_softmax(-1)
        tokens = whole[0, len(prompt) :].tolist()
        at = range(len(prompt) - 1, len(prompt) + num_tokens - 1)
        return tokens, [logits[row, token].item() for row, token in zip(at, tokens, strict=True)]


def runtime_of(**changes: Any) -> RuntimeConfig:
    """RuntimeConfig of the engines above."""
    values: dict[str, Any] = {
        "max_seq_len": MAX_SEQ_LEN,
        "max_batch_size": 16,
        "tokens_per_block": TOKENS_PER_BLOCK,
        "kv_dtype": "float32",
        "kv_cache_bytes": 32 * 2**20,
    }
    return RuntimeConfig(**(values | changes))


def random_prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1000 * length + seed)
    return tuple(torch.randint(2, 256, (length,), generator=generator).tolist())
