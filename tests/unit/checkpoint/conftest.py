"""One small random checkpoint, written once and copied for each test that damages it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import small_config, write_checkpoint
from safetensors.torch import load_file, save_file


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bf16, three dense layers and one MoE layer, in several shards."""
    folder = tmp_path_factory.mktemp("pristine") / "checkpoint"
    config = small_config(num_hidden_layers=4, num_experts=8)
    write_checkpoint(folder, config, dtype=torch.bfloat16, max_shard_size="200KB")
    return folder


@pytest.fixture
def checkpoint(pristine: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(pristine, tmp_path / "checkpoint"))


Edit = Callable[[dict[str, torch.Tensor]], None]


@pytest.fixture
def single(pristine: Path, tmp_path: Path) -> Callable[[Edit], Path]:
    """Write the checkpoint as one model.safetensors after an edit of its tensors."""

    def write(edit: Edit) -> Path:
        folder = tmp_path / "single"
        folder.mkdir()
        tensors: dict[str, torch.Tensor] = {}
        for file in sorted(pristine.glob("*.safetensors")):
            tensors.update(load_file(file))
        edit(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        shutil.copy(pristine / "config.json", folder)
        return folder

    return write


@pytest.fixture
def edit_json() -> Callable[[Path, Callable[[Any], None]], None]:
    def edit(path: Path, change: Callable[[Any], None]) -> None:
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))

    return edit
