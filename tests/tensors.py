"""All tensors of a checkpoint folder at once, through the safetensors library."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def read_all(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint, by the safetensors library."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def as_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Change some tensors of a checkpoint in place, within their files."""
    tensors = read_all(folder)
    before = {file: list(load_file(file)) for file in sorted(folder.glob("*.safetensors"))}
    change(tensors)
    for file, held in before.items():
        save_file({name: tensors[name] for name in held if name in tensors}, file)
