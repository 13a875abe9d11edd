"""From a checkpoint folder to an engine directory, complete or absent.

Knows nothing about quantizing or Triton: `engine.pipeline` runs the stages around this one.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from beam_trt import __version__
from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.checkpoint.output import atomic_output, prepare_output
from beam_trt.checkpoint.reader import CheckpointReader
from beam_trt.checkpoint.sidecars import copy_sidecars
from beam_trt.checkpoint.validate import validate
from beam_trt.config.build import BuildConfig
from beam_trt.config.hardware import Gpu
from beam_trt.config.mapping import Mapping
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.engine.launch_table import launch_table
from beam_trt.engine.manifest import (
    CONFIG_FILE,
    LAUNCH_TABLE_FILE,
    TOKENIZER_DIR,
    EngineConfig,
    Manifest,
    rank_file,
)
from beam_trt.engine.rank_file import RankFileWriter
from beam_trt.engine.shard import file_order, iter_pieces
from beam_trt.engine.source import describe_source
from beam_trt.errors import CheckpointError, ConfigError, OutputError

Progress = Callable[[int, int], None]
"""Called with (bytes written, bytes in all), all ranks together."""

Note = Callable[[str], None]
"""Called with one line a user should read, while the work goes on."""

_PACKAGES = ("torch", "transformers", "safetensors", "nvidia-modelopt")


def build_engine(
    checkpoint: Path,
    engine_dir: Path,
    quant: QuantConfig,
    mapping: Mapping,
    build: BuildConfig,
    progress: Progress | None = None,
    on_note: Note | None = None,
) -> Manifest:
    """Write the engine of `checkpoint`, which must already have the precision of `quant`.

    Every rank's file is written in one pass over the checkpoint; peak memory is that of
    `shard.iter_pieces`. The folder appears under its name when it is complete and never before.
    The same inputs give the same bytes. Raises CheckpointError for a checkpoint that is damaged or
    has another precision, ConfigError where the model cannot be split or does not fit the target,
    OutputError for a folder that is not empty or a disk that is full.
    """
    build.runtime.check_buildable()
    prepare_output(engine_dir)
    index = CheckpointIndex.open(checkpoint)
    validate(index)
    check_precision(index, quant)
    mapping = mapping.with_rank(0)
    rank_bytes = check_fits(index.config, quant, mapping, build)
    _check_disk(engine_dir, rank_bytes * mapping.tp_size)
    # What the weights are stored in is what the engine computes in.
    dtype = "float32" if quant.precision is Precision.FP32 else "bfloat16"
    model = replace(index.config, dtype=dtype)
    with atomic_output(engine_dir) as folder:
        hashes = _write_ranks(folder, index, quant, mapping, progress, on_note)
        (folder / TOKENIZER_DIR).mkdir()
        copy_sidecars(checkpoint, folder / TOKENIZER_DIR)
        table = launch_table(build.gpu)
        _note_missing_kernels(table, build, on_note)
        _write_json(folder / LAUNCH_TABLE_FILE, table)
        config = EngineConfig(
            engine_dir, model, quant, mapping, build, __version__, package_versions()
        )
        _write_json(folder / CONFIG_FILE, config.to_dict())
        target = {"gpu": build.gpu, "sm": Gpu.named(build.gpu).sm if build.gpu else None}
        manifest = Manifest.of_files(folder, describe_source(index), target, hashes)
        manifest.write(folder)
    return manifest


def package_versions() -> dict[str, str]:
    """Versions of what had a hand in an engine's bytes."""
    found = {"beam_trt": __version__}
    for package in _PACKAGES:
        try:
            found[package.replace("-", "_")] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _write_ranks(
    folder: Path,
    index: CheckpointIndex,
    quant: QuantConfig,
    mapping: Mapping,
    progress: Progress | None,
    on_note: Note | None,
) -> dict[str, str]:
    """Write every rank's file; sha256 of each by name."""
    specs = file_order(index.config, quant, mapping)
    total = sum(spec.num_bytes for spec in specs) * mapping.tp_size
    done = 0
    writers: list[RankFileWriter] = []
    try:
        for rank in range(mapping.tp_size):
            writers.append(RankFileWriter(folder / rank_file(rank), specs))
        with CheckpointReader(index) as reader:
            for piece in iter_pieces(reader, index.config, quant, mapping, on_note):
                writers[piece.rank].write(piece.name, piece.tensor)
                done += piece.tensor.numel() * piece.tensor.element_size()
                if progress:
                    progress(done, total)
        return {writer.path.name: writer.close() for writer in writers}
    except BaseException:
        for writer in writers:
            writer.abandon()
        raise


def is_buildable_from(found: QuantConfig, wanted: QuantConfig) -> bool:
    """Whether a checkpoint in `found` can become an engine in `wanted` without rounding."""
    return found == wanted or (found.precision, wanted.precision) == (
        Precision.BF16,
        Precision.FP32,
    )


def check_precision(index: CheckpointIndex, quant: QuantConfig) -> None:
    """CheckpointError unless the checkpoint `is_buildable_from` as it is."""
    if is_buildable_from(index.quant, quant):
        return
    if index.precision.is_quantized:
        advice = (
            "A quantized checkpoint is not converted again: start from the original, or build "
            f"with --precision {index.precision}."
        )
    else:
        advice = (
            f"Run `beam-trt quantize --precision {quant.precision}` on it first, or "
            "`beam-trt build`, which does both."
        )
    raise CheckpointError(
        f"{index.folder}: expected a checkpoint in {_named(quant)}, found {_named(index.quant)}. "
        f"{advice}"
    )


def check_fits(
    config: ModelConfig, quant: QuantConfig, mapping: Mapping, build: BuildConfig
) -> int:
    """Bytes of weights on each rank. ConfigError where the model cannot be split like this, does
    not allow the build's limits, or does not fit into the target's memory."""
    build.check_model(config)
    rank_bytes = sum(spec.num_bytes for spec in file_order(config, quant, mapping))
    if build.gpu is not None:
        gpu = Gpu.named(build.gpu)
        if rank_bytes >= gpu.memory_gb * 1e9:
            raise ConfigError(
                f"gpu {build.gpu}: each of {mapping.tp_size} ranks holds {rank_bytes / 1e9:.1f} "
                f"GB of weights, a {gpu.title} has {gpu.memory_gb:.0f} GB. Use more ranks (--tp) "
                "or a smaller precision."
            )
    return rank_bytes


def _named(quant: QuantConfig) -> str:
    return f"{quant.precision} (experts only)" if quant.experts_only else str(quant.precision)


def _check_disk(engine_dir: Path, needed: int) -> None:
    place = next(p for p in (engine_dir.resolve(), *engine_dir.resolve().parents) if p.exists())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise OutputError(
            f"{engine_dir}: the engine needs {needed / 1e9:.2f} GB, the disk has "
            f"{free / 1e9:.2f} GB free: nothing was written. Free some space or give an output "
            "folder on another disk."
        )


def _note_missing_kernels(table: dict[str, Any], build: BuildConfig, on_note: Note | None) -> None:
    operators = table["operators"]
    missing = [name for name, entry in operators.items() if entry["implementation"] is None]
    if missing and on_note:
        on_note(
            f"{len(missing)} of {len(operators)} operators have no kernel for {build.target} in "
            "this installation: the engine's weights are complete, starting it needs one that has."
        )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
