"""Small random checkpoints and token ids for the quantize stage."""

import random
from pathlib import Path

import pytest
import torch
from checkpoints import small_config, write_checkpoint


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bf16, three dense layers and two MoE layers, in several shards, without a tokenizer."""
    folder = tmp_path_factory.mktemp("source") / "model"
    config = small_config(num_hidden_layers=5)
    write_checkpoint(folder, config, dtype=torch.bfloat16, max_shard_size="500KB")
    return folder


@pytest.fixture(scope="session")
def samples() -> list[list[int]]:
    """Token ids of 4 texts on both sides of the attention window of 64."""
    generator = random.Random(0)
    return [[generator.randrange(256) for _ in range(n)] for n in (40, 130, 1, 65)]
