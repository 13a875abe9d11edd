"""Is an engine or a checkpoint whole, and does it compute what transformers computes?

Integrity reads every byte once and changes nothing; numbers are `engine.compare`.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.config.build import BuildConfig
from beam_trt.config.mapping import Mapping
from beam_trt.config.quant import Precision
from beam_trt.engine.build import build_engine
from beam_trt.engine.compare import Comparison, compare, held_out_samples, named_engines
from beam_trt.engine.manifest import (
    LAUNCH_TABLE_FILE,
    MANIFEST_FILE,
    EngineConfig,
    Manifest,
)
from beam_trt.engine.target import Kind, kind_of
from beam_trt.errors import BeamTrtError, CheckpointError, ConfigError, EngineError

if TYPE_CHECKING:
    from beam_trt.quantize.differences import Differences

Progress = Callable[[int, int], None]
"""Called with (done, total): bytes while files are read, texts while numbers are compared."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at; `problems` is empty where it is right."""

    name: str
    problems: tuple[str, ...]

    @property
    def is_ok(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class Verification:
    """Findings on one folder; `comparison` is None where no reference was given, `differences`
    where no other checkpoint was."""

    path: str
    kind: str
    checks: tuple[Check, ...]
    comparison: Comparison | None
    differences: "Differences | None" = None

    @property
    def is_ok(self) -> bool:
        return all(check.is_ok for check in self.checks)

    def raise_if_wrong(self) -> None:
        """EngineError or CheckpointError with the first problem and how many there are."""
        problems = [problem for check in self.checks for problem in check.problems]
        if problems:
            more = f" ({len(problems) - 1} more problems)" if len(problems) > 1 else ""
            kind = EngineError if self.kind == Kind.ENGINE else CheckpointError
            raise kind(problems[0] + more)
        found = self.differences
        if found is not None and found.is_same_format and not found.is_identical:
            count = found.num_weights - found.num_identical
            raise CheckpointError(
                f"{self.path}: {count} of {found.num_weights} weights differ from {found.there}, "
                f"expected the same bytes of two {found.formats[0]} checkpoints. First: "
                f"{found.largest[0].name}, {found.largest[0].what}."
            )

    def to_dict(self) -> dict[str, Any]:
        differences = self.differences.to_dict() if self.differences is not None else None
        return {**asdict(self), "differences": differences, "is_ok": self.is_ok}


def verify(
    path: Path,
    reference: Path | None = None,
    full: bool = False,
    progress: Progress | None = None,
    values: bool = True,
    against: Path | None = None,
) -> Verification:
    """Check an engine, a build's engine, or a checkpoint.

    Engine: every file's size and sha256, no stray file, and each rank's tensors against the table.
    Checkpoint: `quantize.verify`, headers and scalars alone unless `values`; `against` another
    checkpoint also `quantize.differences`. With a reference, which must be the unquantized model,
    also its numbers on held-out text, a sample of it unless `full`; a checkpoint's are those of a
    one-rank engine built from it in a temporary folder. Damage is reported in the result, and
    numbers are left out then; raises only where `path` is neither, or the reference is unusable.
    """
    kind, folder = kind_of(path)
    if against is not None and kind is not Kind.CHECKPOINT:
        raise ConfigError(
            f"against: {path} is an engine; only two checkpoints can be compared. Use --reference "
            "for an engine's numbers."
        )
    is_engine = kind is Kind.ENGINE
    checks = tuple(_engine_checks(folder, progress) if is_engine else _checked(folder, values))
    comparison = None
    if reference is not None and all(check.is_ok for check in checks):
        samples = held_out_samples(reference, full)
        if kind is Kind.ENGINE:
            comparison = compare(named_engines([folder]), reference, samples, progress)[0]
        else:
            comparison = _compare_checkpoint(folder, reference, samples, progress)
    differences = None
    if against is not None and all(check.is_ok for check in checks):
        from beam_trt.quantize.differences import find_differences

        differences = find_differences(folder, against, progress=progress)
    return Verification(str(folder), str(kind), checks, comparison, differences)


def verify_many(
    engines: Sequence[Path],
    reference: Path,
    full: bool = False,
    progress: Progress | None = None,
) -> list[Comparison]:
    """One row for each engine (or build) against the same reference on the same held-out text.
    Raises EngineError for a damaged engine, CheckpointError for an unusable reference."""
    folders = []
    for path in engines:
        kind, folder = kind_of(path)
        if kind is not Kind.ENGINE:
            raise EngineError(f"{path}: expected an engine, found a checkpoint. Build it first.")
        folders.append(folder)
    return compare(named_engines(folders), reference, held_out_samples(reference, full), progress)


def _checked(folder: Path, values: bool) -> Iterator[Check]:
    from beam_trt.quantize.verify import verify as verify_checkpoint

    for check in verify_checkpoint(folder, values):
        yield Check(check.name, tuple(check.problems))


def _engine_checks(folder: Path, progress: Progress | None) -> Iterator[Check]:
    opened: list[tuple[EngineConfig, Manifest]] = []
    first = Check(
        "config and manifest",
        _problems(lambda: opened.append((EngineConfig.load(folder), Manifest.load(folder)))),
    )
    yield first
    if not opened:
        return
    engine, manifest = opened[0]
    files = Check("files and sizes", tuple(_file_problems(engine, manifest)))
    yield files
    if not files.is_ok:
        return
    yield Check("sha256 of every file", tuple(_hash_problems(folder, manifest, progress)))
    yield Check("tensors of every rank", tuple(_tensor_problems(engine)))


def _file_problems(engine: EngineConfig, manifest: Manifest) -> Iterator[str]:
    folder = engine.engine_dir
    listed = {entry.name for entry in manifest.files}
    needed = {LAUNCH_TABLE_FILE}
    needed |= {engine.rank_path(rank).name for rank in range(engine.mapping.tp_size)}
    for name in sorted(needed - listed):
        yield f"{folder / MANIFEST_FILE}: does not list {name}. Build the engine again."
    for entry in manifest.files:
        yield from _problems(partial(manifest.check_size, folder, entry))
    yield from _problems(lambda: manifest.check_no_stray(folder))


def _hash_problems(folder: Path, manifest: Manifest, progress: Progress | None) -> Iterator[str]:
    total, done = sum(entry.num_bytes for entry in manifest.files), 0
    for entry in manifest.files:
        yield from _problems(partial(manifest.check_hash, folder, entry.name))
        done += entry.num_bytes
        if progress:
            progress(done, total)


def _tensor_problems(engine: EngineConfig) -> Iterator[str]:
    from beam_trt.model.weights import load_rank

    for rank in range(engine.mapping.tp_size):
        yield from _problems(partial(load_rank, engine.engine_dir, rank))


def _problems(action: Callable[[], object]) -> tuple[str, ...]:
    """The message of what `action` raises for a user; nothing where it passes."""
    try:
        action()
    except BeamTrtError as error:
        return (str(error),)
    return ()


def _compare_checkpoint(
    folder: Path, reference: Path, samples: Sequence[list[int]], progress: Progress | None
) -> Comparison:
    index = CheckpointIndex.open(folder)
    kv_dtype = "float32" if index.precision is Precision.FP32 else "bfloat16"
    build = BuildConfig(index.config.max_position_embeddings, kv_dtype=kv_dtype)
    with tempfile.TemporaryDirectory(prefix="beam-trt-verify-") as temporary:
        engine_dir = Path(temporary) / "engine"
        build_engine(folder, engine_dir, index.quant, Mapping(), build)
        return compare({str(index.precision): engine_dir}, reference, samples, progress)[0]
