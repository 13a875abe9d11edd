"""All stages of `beam-trt build`: checkpoint, engine, Triton repository, each complete or absent.

The stages meet on disk only. `DIR/build.json` says what DIR is being built from and with which
settings, so that a run that was stopped can go on where the next stage begins.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from beam_trt import __version__
from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.checkpoint.output import output_error, prepare_output
from beam_trt.checkpoint.validate import validate
from beam_trt.config.deployment import DeploymentConfig
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.engine.build import (
    build_engine,
    check_fits,
    check_precision,
    is_buildable_from,
)
from beam_trt.engine.manifest import EngineConfig, Manifest
from beam_trt.engine.source import describe_source
from beam_trt.errors import CheckpointError, OutputError

RECORD_FILE = "build.json"
CHECKPOINT, ENGINE, TRITON_REPO = "checkpoint", "engine", "triton_repo"


class Reporter(Protocol):
    """Hears how a build goes on."""

    def stage(self, name: str) -> None:
        """A stage begins."""
        ...

    def progress(self, done: int, total: int) -> None:
        """Bytes (or other units) done and in all, within the stage."""
        ...

    def note(self, text: str) -> None:
        """Something a user should read."""
        ...


class Silent:
    """A Reporter for nobody."""

    def stage(self, name: str) -> None:
        pass

    def progress(self, done: int, total: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class StageResult:
    """What became of one stage. outcome: built, reused (an earlier run finished it) or not needed.
    num_bytes counts the files of its folder."""

    name: str
    path: str
    outcome: str
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What `build_all` did. `source_bytes` are the tensors of the model it started from."""

    out_dir: str
    model: str
    precision: str
    tp_size: int
    ep_size: int
    target: str
    source_bytes: int
    stages: tuple[StageResult, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def default_out_dir(model: Path, deployment: DeploymentConfig) -> Path:
    """`MODEL-nvfp4-tp4` (`-ep2` where experts are split) in the current folder."""
    layout = deployment.mapping
    ep = f"-ep{layout.ep_size}" if layout.ep_size > 1 else ""
    return Path(f"{model.resolve().name}-{deployment.precision}-tp{layout.tp_size}{ep}")


def build_all(
    model: Path,
    out_dir: Path,
    deployment: DeploymentConfig,
    calibration: Sequence[str] | None = None,
    reporter: Reporter | None = None,
) -> BuildReport:
    """Quantize `model` into `out_dir/checkpoint` where it does not have the precision yet, build
    `out_dir/engine` and write `out_dir/triton_repo`.

    Everything that can be known to fail is checked before the first stage. Stages an earlier run
    with the same source and settings finished are kept. `calibration` are texts; None takes those
    that ship with beam-trt. Raises CheckpointError, ConfigError, OutputError as the stages do, and
    OutputError where `out_dir` holds something else.
    """
    deployment.runtime.check_buildable()
    reporter = reporter or Silent()
    index = CheckpointIndex.open(model)
    validate(index)
    mapping = deployment.ranks(index.config)
    build = deployment.for_model(index.config)
    check_fits(index.config, deployment.quant, mapping, build)
    needs_quantizing = not is_buildable_from(index.quant, deployment.quant)
    if index.precision.is_quantized or deployment.precision is Precision.FP32:
        check_precision(index, deployment.quant)
    _begin(out_dir, _record(index, deployment, calibration))
    checkpoint = out_dir / CHECKPOINT if needs_quantizing else model
    stages = (
        _stage(
            reporter,
            checkpoint,
            CHECKPOINT,
            (lambda: _quantize(model, checkpoint, deployment, calibration, reporter))
            if needs_quantizing
            else None,
            lambda: _check_checkpoint(checkpoint, deployment.quant),
        ),
        _stage(
            reporter,
            out_dir / ENGINE,
            ENGINE,
            lambda: build_engine(
                checkpoint,
                out_dir / ENGINE,
                deployment.quant,
                mapping,
                build,
                reporter.progress,
                reporter.note,
            ),
            lambda: _check_engine(out_dir / ENGINE, checkpoint),
        ),
        _stage(
            reporter,
            out_dir / TRITON_REPO,
            TRITON_REPO,
            lambda: _write_repository(out_dir, reporter),
            lambda: None,
        ),
    )
    return BuildReport(
        out_dir=str(out_dir),
        model=str(model),
        precision=str(deployment.precision),
        tp_size=mapping.tp_size,
        ep_size=mapping.ep_size,
        target=build.target,
        source_bytes=index.num_bytes,
        stages=stages,
    )


def _stage(
    reporter: Reporter,
    path: Path,
    name: str,
    run: Callable[[], object] | None,
    check: Callable[[], None],
) -> StageResult:
    """Run one stage unless its folder is there: a folder under its name is complete."""
    start = time.monotonic()
    if run is None:
        outcome = "not needed"
    elif path.is_dir() and any(path.iterdir()):
        check()
        outcome = "reused"
    else:
        reporter.stage(name)
        run()
        outcome = "built" if path.is_dir() else "not possible"
    num_bytes = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    return StageResult(name, str(path), outcome, num_bytes, time.monotonic() - start)


def _quantize(
    model: Path,
    out: Path,
    deployment: DeploymentConfig,
    calibration: Sequence[str] | None,
    reporter: Reporter,
) -> None:
    from beam_trt import quantize

    report = quantize.run(
        model,
        out,
        deployment.quant,
        calibration=_texts(calibration),
        num_samples=deployment.calibration.num_samples,
        progress=lambda now: reporter.progress(now.done_bytes, now.total_bytes),
    )
    for warning in report.warnings:
        reporter.note(warning)


def _write_repository(out_dir: Path, reporter: Reporter) -> None:
    from beam_trt.triton.repository import write_repository

    if not (out_dir / ENGINE / "tokenizer" / "tokenizer.json").is_file():
        reporter.note(
            f"{out_dir / ENGINE}: the model came without a tokenizer, so no Triton repository was "
            "written: it could not be served as text."
        )
        return
    write_repository(out_dir / ENGINE, out_dir / TRITON_REPO)


def _texts(calibration: Sequence[str] | None) -> list[str]:
    from beam_trt import assets

    return list(calibration) if calibration is not None else assets.calibration_texts()


def _check_checkpoint(checkpoint: Path, quant: QuantConfig) -> None:
    index = CheckpointIndex.open(checkpoint)
    validate(index)
    check_precision(index, quant)


def _check_engine(engine_dir: Path, checkpoint: Path) -> None:
    manifest = Manifest.load(engine_dir)
    EngineConfig.load(engine_dir)
    manifest.check_sizes(engine_dir)
    found = describe_source(CheckpointIndex.open(checkpoint))["identity"]
    if manifest.source["identity"] != found:
        raise OutputError(
            f"{engine_dir}: built from another checkpoint than {checkpoint} is now. Remove the "
            "engine folder to build it again, or give another output folder."
        )


def _record(
    index: CheckpointIndex, deployment: DeploymentConfig, calibration: Sequence[str] | None
) -> dict[str, Any]:
    texts = None
    if calibration is not None:
        texts = hashlib.sha256("\0".join(calibration).encode()).hexdigest()
    settings = asdict(deployment)
    return {
        "tool_version": __version__,
        "source": describe_source(index),
        "settings": json.loads(json.dumps(settings)),
        "calibration_texts": texts,
    }


def _begin(out_dir: Path, record: dict[str, Any]) -> None:
    """Claim `out_dir` for this build, or find that an earlier run of the same build did."""
    path = out_dir / RECORD_FILE
    if path.is_file():
        _check_same(out_dir, path, record)
        return
    prepare_output(out_dir)
    temporary = out_dir / f".{RECORD_FILE}.partial"
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        temporary.rename(path)
    except OSError as error:
        raise output_error(out_dir, error) from error


def _check_same(out_dir: Path, path: Path, record: dict[str, Any]) -> None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        before, now = _flat(found), _flat(record)
    except (OSError, ValueError, AttributeError) as error:
        raise OutputError(
            f"{path}: cannot be read: {error}. Remove {out_dir} or give another output folder."
        ) from error
    if found.get("source", {}).get("identity") != record["source"]["identity"]:
        raise CheckpointError(
            f"{out_dir}: begun from another checkpoint "
            f"({before.get('source.name')}, {before.get('source.precision')}) than the one given "
            f"({now['source.name']}, {now['source.precision']}). Give another output folder, or "
            f"remove {out_dir}."
        )
    ignored = ("tool_version", "source.name")
    different = [
        f"{key.removeprefix('settings.')} {before.get(key)} there, {now.get(key)} asked for"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and key not in ignored
    ]
    if different:
        raise OutputError(
            f"{out_dir}: begun with other settings: {'; '.join(different)}. Give another output "
            f"folder, or remove {out_dir}. To keep its quantized checkpoint, build from "
            f"{out_dir / CHECKPOINT}."
        )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as `a.b`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
