"""`beam-trt quantize`: a checkpoint in, a smaller checkpoint out."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from beam_trt.cli.output import console, json_option, print_json

if TYPE_CHECKING:
    from beam_trt.quantize.report import Report
    from beam_trt.quantize.stream import Progress as Standing

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_size(_: click.Context, __: click.Parameter, value: str) -> int:
    """Bytes of a size written like 5GB or 500MB."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(KB|MB|GB|)", value.strip().upper())
    if match is None or float(match[1]) <= 0:
        raise click.BadParameter(f"expected a size like 5GB or 500MB, found {value!r}.")
    return int(float(match[1]) * _UNITS[match[2]])


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "out_dir",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder to write; must be new or empty.",
)
@click.option(
    "--precision",
    required=True,
    type=click.Choice(["nvfp4", "fp8", "bf16"]),
    help="nvfp4 as ModelOpt writes it, fp8 as compressed-tensors reads it, or plain bf16.",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="Text for nvfp4's activation scales: .jsonl with `text`, or plain text with samples "
    "separated by blank lines. Default: the bundled texts.",
)
@click.option(
    "--samples",
    "num_samples",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Calibration texts to use, each cut to 1024 tokens.",
)
@click.option("--experts-only", is_flag=True, help="Leave attention and dense MLPs in bf16.")
@click.option(
    "--max-shard-size",
    metavar="SIZE",
    callback=parse_size,
    default="5GB",
    show_default=True,
    help="Largest safetensors file.",
)
@json_option
def quantize(
    model: Path,
    out_dir: Path,
    precision: str,
    calibration: Path | None,
    num_samples: int,
    experts_only: bool,
    max_shard_size: int,
    as_json: bool,
) -> None:
    """Quantize the checkpoint folder MODEL, one matrix at a time.

    The output folder appears complete or not at all. A run that was stopped (Ctrl-C, kill, full
    disk) continues when the same command is run again: finished shards and calibration are kept in
    a hidden folder beside the output.
    """
    from beam_trt import quantize as stage
    from beam_trt.config.quant import Precision, QuantConfig

    quant = QuantConfig(Precision.parse(precision), experts_only)
    texts = _calibration_texts(quant.precision is Precision.NVFP4, calibration)
    bar = Bar()
    try:
        with bar.shown:
            report = stage.run(
                model, out_dir, quant, texts, num_samples, max_shard_size, progress=bar.update
            )
    except KeyboardInterrupt:
        kept = stage.kept(out_dir) or f"{out_dir} was not written; start again at will."
        console.print(f"Stopped {bar.standing}. {kept}", soft_wrap=True)
        raise
    for warning in report.warnings:
        console.print(f"warning: {warning}")
    if as_json:
        print_json(report.to_dict())
    else:
        console.print(report_table(report, out_dir))


class Bar:
    """A progress bar on stderr: bytes and tensors, rate, time left."""

    def __init__(self) -> None:
        self.shown = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TextColumn("{task.fields[tensors]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self.shown.add_task("opening", total=None, tensors="")
        self.standing = "before the first tensor"

    def update(self, now: "Standing") -> None:
        where = "" if now.layer_idx is None else f" layer {now.layer_idx}"
        tensors = f"{now.num_tensors}/{now.total_tensors} tensors"
        self.standing = f"after {tensors}, {now.done_bytes / 1e9:.2f} GB read"
        self.shown.update(
            self._task,
            description=f"quantizing{where}",
            completed=now.done_bytes,
            total=now.total_bytes,
            tensors=tensors,
        )


def report_table(report: "Report", out_dir: Path) -> Table:
    """Sizes by part before and after, and the error, for a person."""
    scale, unit = (1e9, "GB") if report.total_before >= 1e9 else (1e6, "MB")
    kind = f"{report.precision}{', experts only' if report.experts_only else ''}"
    table = Table(title=f"{out_dir}: {kind}, {report.seconds:.1f} s", title_justify="left")
    table.add_column("part")
    for column in (f"before {unit}", f"after {unit}", "ratio"):
        table.add_column(column, justify="right")
    rows = [(part, size, report.bytes_after[part]) for part, size in report.bytes_before.items()]
    for part, before, after in [*rows, ("total", report.total_before, report.total_after)]:
        if part == "total":
            table.add_section()
        table.add_row(
            part, f"{before / scale:.3f}", f"{after / scale:.3f}", f"{after / before:.3f}"
        )
    errors = [layer for layer in report.layers if layer.relative_error is not None]
    if report.relative_error is not None and errors:
        worst = max(errors, key=lambda layer: layer.relative_error or 0.0)
        table.caption = (
            f"relative error of the quantized weights {report.relative_error:.4f} "
            f"(worst layer {worst.layer_idx}: {worst.relative_error:.4f})"
        )
        if report.num_samples:
            table.caption += (
                f"\ncalibrated on {report.num_samples} texts, "
                f"{report.num_calibration_tokens} tokens"
            )
    return table


def _calibration_texts(is_needed: bool, path: Path | None) -> list[str] | None:
    if path is not None:
        from beam_trt.quantize.texts import read_texts

        return read_texts(path)
    if not is_needed:
        return None
    from beam_trt.assets import calibration_texts

    return calibration_texts()
