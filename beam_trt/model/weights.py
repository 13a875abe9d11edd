"""One rank's weights from an engine directory: memory mapped, checked against the table.

Knows the file format and `config.tensors`; nothing about what the weights are for.
"""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from beam_trt.config.mapping import Mapping
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import QuantConfig
from beam_trt.config.tensors import engine_tensors
from beam_trt.engine.manifest import EngineConfig
from beam_trt.errors import EngineError

_DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
}


def load_rank(engine_dir: Path, rank: int) -> dict[str, torch.Tensor]:
    """All tensors of `rank{rank}.safetensors` by engine name, backed by the mapped file: nothing is
    read until a tensor is used. Raises EngineError when the file is missing or damaged, or holds
    other tensors than the engine's config.json calls for."""
    engine = EngineConfig.load(engine_dir)
    if not 0 <= rank < engine.mapping.tp_size:
        raise EngineError(
            f"{engine_dir}: rank {rank} asked for, built for ranks 0..{engine.mapping.tp_size - 1}."
            " Start as many ranks as the engine has, or rebuild it."
        )
    path = engine_dir / f"rank{rank}.safetensors"
    return read_rank_file(path, engine.model, engine.quant, engine.mapping.with_rank(rank))


def read_rank_file(
    path: Path, config: ModelConfig, quant: QuantConfig, mapping: Mapping
) -> dict[str, torch.Tensor]:
    """`load_rank` on one file whose config is known."""
    try:
        with safe_open(path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise EngineError(
            f"{path}: missing. The engine is incomplete: build it again, or copy the whole folder."
        ) from None
    except (SafetensorError, OSError) as error:
        raise EngineError(
            f"{path}: damaged: {error}. Build the engine again, or copy the file again."
        ) from error
    check_weights(weights, config, quant, mapping, str(path))
    return weights


def check_weights(
    weights: dict[str, torch.Tensor],
    config: ModelConfig,
    quant: QuantConfig,
    mapping: Mapping,
    where: str,
) -> None:
    """Raise EngineError, naming `where` and the first tensor that is missing, unexpected, or has
    another dtype or shape than `config.tensors` says."""
    specs = {spec.name: spec for spec in engine_tensors(config, quant, mapping)}
    advice = "The engine and its config.json do not belong together: build the engine again."
    missing = [name for name in specs if name not in weights]
    extra = sorted(set(weights) - set(specs))
    if missing:
        raise EngineError(f"{where}: {len(missing)} tensors missing, first {missing[0]}. {advice}")
    if extra:
        raise EngineError(f"{where}: {len(extra)} unexpected tensors, first {extra[0]}. {advice}")
    for name, spec in specs.items():
        found = weights[name]
        if tuple(found.shape) != spec.shape or found.dtype != _DTYPES[spec.dtype]:
            raise EngineError(
                f"{where}: {name}: expected {spec.dtype} {list(spec.shape)}, found "
                f"{str(found.dtype).removeprefix('torch.')} {list(found.shape)}. {advice}"
            )
