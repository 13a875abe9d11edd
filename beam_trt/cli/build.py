"""`beam-trt build`: from a checkpoint to an engine and its Triton repository."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from beam_trt.cli.output import console, json_option, print_json
from beam_trt.errors import ConfigError

if TYPE_CHECKING:
    from rich.progress import Progress

    from beam_trt.config.deployment import DeploymentConfig
    from beam_trt.engine.pipeline import BuildReport

_TITLES = {"checkpoint": "quantize", "engine": "engine", "triton_repo": "Triton repository"}


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--precision", help="nvfp4, fp8 or bf16 (fp32: for exact comparisons on CPU).")
@click.option(
    "--experts-only/--all-linears",
    default=None,
    help="Quantize routed experts alone.  [default: --all-linears]",
)
@click.option("--tp", type=int, help="Ranks that share every layer.  [default: 1]")
@click.option("--ep", type=int, help="Ranks to split the experts over.  [default: 1]")
@click.option(
    "-o",
    "--output",
    "out_dir",
    type=click.Path(path_type=Path),
    help="Folder to write.  [default: MODEL-PRECISION-tpN]",
)
@click.option("--config", "config_name", help="YAML file, or the name of a bundled one.")
@click.option("--runtime", help="native; tensorrt and tensorrt-llm are not built yet.")
@click.option("--gpu", help="GPU the engine is for, as `beam-trt plan` names them; none: CPU.")
@click.option("--max-batch-size", type=int, help="Requests generating at once.")
@click.option("--max-num-tokens", type=int, help="Tokens of one step, all requests together.")
@click.option("--max-seq-len", type=int, help="Tokens of one sequence, prompt and answer.")
@click.option("--tokens-per-block", type=int, help="Tokens in one KV block.")
@click.option("--kv-dtype", help="bfloat16 or float32.  [default: the engine's own]")
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="Text file for NVFP4's activation scales.  [default: the bundled texts]",
)
@click.option("--samples", type=int, help="Calibration texts to use.")
@json_option
def build(
    model: Path,
    out_dir: Path | None,
    config_name: str | None,
    calibration: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Quantize MODEL if needed, build its engine and the Triton repository.

    Writes DIR/checkpoint (only where MODEL does not have the precision yet), DIR/engine and
    DIR/triton_repo. Options given here win over --config. A run that was stopped goes on with the
    first stage that is not complete.
    """
    from beam_trt.engine.pipeline import build_all, default_out_dir

    deployment = _deployment(config_name, options)
    out = out_dir or default_out_dir(model, deployment)
    texts = _read_texts(calibration)
    reporter = _Bars(_progress())
    try:
        report = build_all(model, out, deployment, texts, reporter)
    except KeyboardInterrupt:
        console.print(
            f"Stopped in stage {reporter.current}. Complete stages are kept in {out}: the same "
            "command goes on from there."
        )
        raise
    finally:
        reporter.close()
    if as_json:
        print_json({**report.to_dict(), "notes": reporter.notes})
    else:
        _print(report)


def _deployment(config_name: str | None, options: dict[str, Any]) -> "DeploymentConfig":
    """The YAML's values with the given options on top."""
    from beam_trt.config.build import RuntimeKind
    from beam_trt.config.deployment import DeploymentConfig, load_deployment
    from beam_trt.config.quant import Precision

    given = {name: value for name, value in options.items() if value is not None}
    top: dict[str, Any] = {name: given[name] for name in ("gpu", "experts_only") if name in given}
    if "precision" in given:
        top["precision"] = Precision.parse(given["precision"])
    if "runtime" in given:
        top["runtime"] = RuntimeKind.parse(given["runtime"])
    if config_name:
        deployment = replace(load_deployment(config_name), **top)
    elif "precision" in top:
        deployment = DeploymentConfig(**top)
    else:
        raise ConfigError("precision: give --precision nvfp4, fp8 or bf16, or a --config.")
    sections = {
        "mapping": {"tp": "tp_size", "ep": "ep_size"},
        "build": {
            name: name
            for name in (
                "max_batch_size",
                "max_num_tokens",
                "max_seq_len",
                "tokens_per_block",
                "kv_dtype",
            )
        },
        "calibration": {"samples": "num_samples"},
    }
    for section, names in sections.items():
        changes = {field: given[option] for option, field in names.items() if option in given}
        if changes:
            changed = replace(getattr(deployment, section), **changes)
            deployment = replace(deployment, **{section: changed})
    return deployment


def _read_texts(path: Path | None) -> list[str] | None:
    from beam_trt.quantize.texts import read_texts

    return None if path is None else read_texts(path)


def _progress() -> "Progress":
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (TextColumn("{task.description:<18}"), BarColumn(), DownloadColumn())
    return Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console)


class _Bars:
    """Shows a build's stages as bars; keeps its notes."""

    def __init__(self, progress: "Progress") -> None:
        self._progress = progress
        self._task: Any = None
        self.current = "checking"
        self.notes: list[str] = []

    def close(self) -> None:
        self._progress.stop()

    def stage(self, name: str) -> None:
        # Not before there is something to show, so that an early error stands alone.
        self._progress.start()
        self.current = _TITLES[name]
        has_bar = name != "triton_repo"
        self._task = self._progress.add_task(self.current, total=None) if has_bar else None

    def progress(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)

    def note(self, text: str) -> None:
        self.notes.append(text)
        console.print(f"[yellow]note:[/] {text}")


def _print(report: "BuildReport") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("stage", "", "size", "seconds", "where", box=None, pad_edge=False)
    for column in (2, 3):
        table.columns[column].justify = "right"
    for stage in report.stages:
        size = f"{stage.num_bytes / 1e6:.1f} MB"
        seconds = f"{stage.seconds:.1f}"
        table.add_row(_TITLES[stage.name], stage.outcome, size, seconds, stage.path)
    out = Console(highlight=False)
    out.print(
        f"{report.model} ({report.source_bytes / 1e6:.1f} MB) in {report.precision} for "
        f"{report.tp_size} ranks on {report.target}"
    )
    out.print(table)
