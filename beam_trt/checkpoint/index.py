"""What a checkpoint folder holds, read from headers alone.

Needs no torch and reads no tensor data: opening a terabyte takes as long as reading its headers.
"""

import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from beam_trt.checkpoint import names
from beam_trt.checkpoint.header import TensorInfo, read_header
from beam_trt.checkpoint.precision import read_quant
from beam_trt.config.model import ModelConfig, read_hf_config
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

_REFETCH = "Fetch the checkpoint again, or write it again with save_pretrained."
_EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")


@dataclass(frozen=True)
class CheckpointIndex:
    """A Beam checkpoint: its configuration and where each tensor lies.

    `tensors` has the names as stored; `find` also answers per-expert names of packed experts.
    `raw_config` is config.json as it is on disk.
    """

    folder: Path
    tensors: dict[str, TensorInfo]
    config: ModelConfig
    quant: QuantConfig
    raw_config: dict[str, Any]

    @classmethod
    def open(cls, folder: Path) -> "CheckpointIndex":
        """Read the headers of `folder`.

        Raises CheckpointError for a folder that is no Beam checkpoint, a missing, truncated or
        stray shard, and an index that disagrees with its shards; ConfigError for a configuration
        that cannot be right. Whether the tensors are the right ones is `validate`'s question.
        """
        raw = read_hf_config(folder)
        config = ModelConfig.from_hf(raw, str(folder / "config.json"))
        tensors = _read_tensors(folder)
        quant = read_quant(folder, raw, config, {n: t.dtype for n, t in tensors.items()})
        return cls(folder, tensors, config, quant, raw)

    @property
    def precision(self) -> Precision:
        return self.quant.precision

    @property
    def files(self) -> list[Path]:
        """The shards, sorted by name."""
        return sorted({info.file for info in self.tensors.values()})

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors, headers not counted."""
        return sum(info.nbytes for info in self.tensors.values())

    def find(self, name: str) -> TensorInfo | None:
        """Where `name` lies, or None. One expert's matrix inside a packed 3-D tensor is a run of
        rows, so it is answered as an ordinary tensor."""
        found = self.tensors.get(name)
        return found if found is not None else self._find_packed(name)

    def require(self, name: str) -> TensorInfo:
        """`find`, or CheckpointError when there is no such tensor."""
        found = self.find(name)
        if found is None:
            raise CheckpointError(
                f"{self.folder}: tensor {name} is missing. Its {len(self.tensors)} tensors do not "
                f"make a whole Beam checkpoint. {_REFETCH}"
            )
        return found

    def identity(self) -> str:
        """sha256 over names, dtypes, shapes, sizes and the configuration; not over the values."""
        digest = hashlib.sha256(json.dumps(self.raw_config, sort_keys=True).encode())
        for name, info in sorted(self.tensors.items()):
            digest.update(f"{name} {info.dtype} {info.shape} {info.nbytes}\n".encode())
        return digest.hexdigest()

    def _find_packed(self, name: str) -> TensorInfo | None:
        match = _EXPERT.fullmatch(name)
        if match is None:
            return None
        layer_idx, expert_idx, proj = int(match[1]), int(match[2]), match[3]
        is_down = proj == "down"
        packed_name = (names.packed_down if is_down else names.packed_gate_up)(layer_idx)
        packed = self.tensors.get(packed_name)
        if packed is None or len(packed.shape) != 3 or expert_idx >= packed.shape[0]:
            return None
        num_parts = 1 if is_down else 2
        nbytes = packed.nbytes // (packed.shape[0] * num_parts)
        part_idx = expert_idx * num_parts + (proj == "up")
        return replace(
            packed,
            name=name,
            shape=(packed.shape[1] // num_parts, packed.shape[2]),
            offset=packed.offset + part_idx * nbytes,
            nbytes=nbytes,
        )


def _read_tensors(folder: Path) -> dict[str, TensorInfo]:
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    weight_map = _read_weight_map(index) if index.exists() else None
    files = sorted({SINGLE_FILE} if weight_map is None else set(weight_map.values()))
    if weight_map is None and not single.exists():
        raise CheckpointError(_no_weights(folder))
    for file in files:
        if not (folder / file).exists():
            raise CheckpointError(
                f"{folder}: shard {file} is missing; {INDEX_FILE} names it. {_REFETCH}"
            )
    stray = sorted({p.name for p in folder.glob("model*.safetensors")} - set(files))
    if stray:
        raise CheckpointError(
            f"{folder}: {', '.join(stray[:3])} is not in {INDEX_FILE}: files of two checkpoints "
            "lie in one folder, or the index is stale. Remove what does not belong, or fetch the "
            "checkpoint again into an empty folder."
        )
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        for info in read_header(folder / file):
            if info.name in tensors:
                raise CheckpointError(
                    f"{folder}: tensor {info.name} is in both {tensors[info.name].file.name} and "
                    f"{file}. {_REFETCH}"
                )
            tensors[info.name] = info
    if weight_map is not None:
        _check_weight_map(index, weight_map, tensors)
    return tensors


def _read_weight_map(index: Path) -> dict[str, str]:
    try:
        raw = json.loads(index.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{index}: cannot be read as JSON: {error}. {_REFETCH}") from error
    weight_map = raw.get("weight_map") if isinstance(raw, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: expected an object 'weight_map' in it. {_REFETCH}")
    for name, file in weight_map.items():
        # A path that leaves the folder would read something that is no part of the checkpoint.
        if not isinstance(file, str) or Path(file).name != file or not file:
            raise CheckpointError(
                f"{index}: {name}: expected a file name in this folder, found {file!r}. {_REFETCH}"
            )
    return weight_map


def _check_weight_map(
    index: Path, weight_map: dict[str, str], tensors: dict[str, TensorInfo]
) -> None:
    for name, file in weight_map.items():
        found = tensors.get(name)
        if found is None or found.file.name != file:
            where = "no shard" if found is None else found.file.name
            raise CheckpointError(
                f"{index}: says that {name} is in {file}, but {where} holds it. {_REFETCH}"
            )
    for name, info in tensors.items():
        if name not in weight_map:
            raise CheckpointError(
                f"{index}: does not list {name}, which {info.file.name} holds. {_REFETCH}"
            )


def _no_weights(folder: Path) -> str:
    pickles = sorted(p.name for p in folder.glob("*.bin"))
    found = f"found {', '.join(pickles[:3])}" if pickles else "found no weights"
    return (
        f"{folder}: expected {SINGLE_FILE} or {INDEX_FILE} with its shards, {found}. "
        "Save the model with save_pretrained, which writes safetensors."
    )
