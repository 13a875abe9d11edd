"""What a checkpoint or an engine holds, from headers and configuration alone: no tensor is read."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from beam_trt.checkpoint.header import TensorInfo, read_header
from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.config.mapping import Mapping
from beam_trt.config.model import DENSE, FULL, ModelConfig
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.config.tensors import BYTES, engine_tensors
from beam_trt.engine.manifest import EngineConfig, Manifest, rank_file
from beam_trt.engine.source import describe_source
from beam_trt.engine.target import Kind, kind_of
from beam_trt.errors import CheckpointError, EngineError

PARTS = ("embedding", "attention", "dense mlp", "experts", "router", "norm", "lm_head")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the model. num_bytes counts every copy on every rank, scales included;
    num_parameters counts each of the model's own parameters once."""

    name: str
    dtypes: tuple[str, ...]
    num_tensors: int
    num_bytes: int
    num_parameters: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """Everything `beam-trt inspect` prints. rank_bytes is empty for a checkpoint; details are
    limits, versions, target and source as the folder states them."""

    path: str
    kind: str
    precision: str
    experts_only: bool
    model: dict[str, Any]
    attention_schedule: str
    mlp_schedule: str
    parts: tuple[Part, ...]
    rank_bytes: tuple[int, ...]
    details: dict[str, Any]

    @property
    def num_parameters(self) -> int:
        return sum(part.num_parameters for part in self.parts)

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)

    def to_dict(self) -> dict[str, Any]:
        totals = {"num_parameters": self.num_parameters, "num_bytes": self.num_bytes}
        return asdict(self) | totals


def inspect(path: Path) -> Inspection:
    """Look into a checkpoint, an engine, or a build's engine. Raises CheckpointError or EngineError
    where it is neither, or its headers or configuration are damaged."""
    kind, folder = kind_of(path)
    return _checkpoint(folder) if kind is Kind.CHECKPOINT else _engine(folder)


def part_of(name: str) -> str:
    """Which of PARTS a tensor belongs to; knows the names of checkpoints and of engines."""
    parts = name.split(".")
    if "experts" in parts or (name.startswith("layers.") and ".moe.gate_up." in name):
        return "experts"
    if ".moe.down." in name:
        return "experts"
    if "router" in parts or "router_bias" in parts or ".mlp.gate." in name:
        return "router"
    if any(part == "norm" or part.endswith(("_norm", "_layernorm")) for part in parts):
        return "norm"
    if "self_attn" in parts or "attention" in parts:
        return "attention"
    if "mlp" in parts:
        return "dense mlp"
    return "lm_head" if "lm_head" in parts else "embedding"


def runs(values: Sequence[object]) -> str:
    """Layer numbers as ranges: [True, True, False, True] as `0-1, 3` of the true ones."""
    spans: list[list[int]] = []
    for idx, value in enumerate(values):
        if not value:
            continue
        if spans and spans[-1][1] == idx - 1:
            spans[-1][1] = idx
        else:
            spans.append([idx, idx])
    return ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in spans) or "none"


def _checkpoint(folder: Path) -> Inspection:
    index = CheckpointIndex.open(folder)
    details = {"source": describe_source(index), "files": [path.name for path in index.files]}
    return _inspection(
        folder, Kind.CHECKPOINT, index.config, index.quant, index.tensors.values(), (), details
    )


def _engine(folder: Path) -> Inspection:
    engine = EngineConfig.load(folder)
    manifest = Manifest.load(folder)
    ranks = [_rank_header(folder, rank) for rank in range(engine.mapping.tp_size)]
    details = {
        "mapping": {"tp_size": engine.mapping.tp_size, "ep_size": engine.mapping.ep_size},
        "limits": engine.build.to_dict(),
        "target": manifest.target,
        "source": manifest.source,
        "versions": engine.versions,
    }
    sizes = tuple(sum(info.nbytes for info in rank) for rank in ranks)
    tensors = [info for rank in ranks for info in rank]
    return _inspection(folder, Kind.ENGINE, engine.model, engine.quant, tensors, sizes, details)


def _rank_header(folder: Path, rank: int) -> list[TensorInfo]:
    try:
        return read_header(folder / rank_file(rank))
    except CheckpointError as error:
        raise EngineError(f"{error} It belongs to an engine: build it again.") from error


def _inspection(
    folder: Path,
    kind: Kind,
    config: ModelConfig,
    quant: QuantConfig,
    tensors: Iterable[TensorInfo],
    rank_bytes: tuple[int, ...],
    details: dict[str, Any],
) -> Inspection:
    return Inspection(
        path=str(folder),
        kind=str(kind),
        precision=str(quant.precision),
        experts_only=quant.experts_only,
        model=config.to_dict(),
        attention_schedule=(
            f"full attention in layers {runs([t == FULL for t in config.layer_types])}; the other "
            f"{config.num_sliding_layers} of {config.num_hidden_layers} slide over "
            f"{config.sliding_window} tokens"
        ),
        mlp_schedule=(
            f"dense in layers {runs([t == DENSE for t in config.mlp_layer_types])}; experts in "
            f"{runs([t != DENSE for t in config.mlp_layer_types])} "
            f"({config.num_experts_per_tok} of {config.num_experts})"
        ),
        parts=_parts(config, tensors),
        rank_bytes=rank_bytes,
        details=details,
    )


def _parts(config: ModelConfig, tensors: Iterable[TensorInfo]) -> tuple[Part, ...]:
    parameters = dict.fromkeys(PARTS, 0)
    # One unquantized rank holds each parameter exactly once.
    for spec in engine_tensors(config, QuantConfig(Precision.FP32), Mapping()):
        parameters[part_of(spec.name)] += spec.num_bytes // BYTES[spec.dtype]
    found: dict[str, list[TensorInfo]] = {name: [] for name in PARTS}
    for info in tensors:
        found[part_of(info.name)].append(info)
    return tuple(
        Part(
            name=name,
            dtypes=tuple(sorted({info.dtype for info in infos})),
            num_tensors=len(infos),
            num_bytes=sum(info.nbytes for info in infos),
            num_parameters=parameters[name],
        )
        for name, infos in found.items()
        if infos
    )
