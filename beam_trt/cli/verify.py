"""`beam-trt verify`: integrity, and numbers against transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from beam_trt.cli.output import console, json_option, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from beam_trt.engine.compare import Comparison
    from beam_trt.engine.verify import Verification
    from beam_trt.quantize.differences import Differences


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--reference",
    type=click.Path(path_type=Path),
    help="The unquantized model: compare logits on held-out text.",
)
@click.option(
    "--values",
    is_flag=True,
    help="Read every tensor of a checkpoint, not only headers and scalars (minutes for 280 GB).",
)
@click.option(
    "--against",
    metavar="OTHER",
    type=click.Path(path_type=Path),
    help="Another checkpoint of the model: compare tensor by tensor. Exit code 1 where two of the "
    "same format differ.",
)
@click.option("--full", is_flag=True, help="Compare on all held-out text instead of a sample.")
@json_option
def verify(
    path: Path,
    reference: Path | None,
    values: bool,
    against: Path | None,
    full: bool,
    as_json: bool,
) -> None:
    """Check that an engine or a checkpoint is whole, and what its numbers are worth.

    PATH is an engine, a build (its engine is meant) or a checkpoint. With --reference, prints KL
    divergence, top-1 agreement and perplexity against transformers in fp32. Exit code 1 where
    anything is wrong with PATH.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from beam_trt.engine.verify import verify as check

    columns = (TextColumn("verify"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        found = check(
            path,
            reference,
            full,
            lambda done, total: bar.update(task, completed=done, total=total),
            values,
            against,
        )
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)
        if found.kind == "checkpoint" and not values:
            console.print("Headers and scalars only; --values reads every tensor too.")
    found.raise_if_wrong()


def comparison_table(rows: "Sequence[Comparison]") -> "Table":
    """Rows of `compare` as people read them."""
    from rich.table import Table

    table = Table("engine", box=None, pad_edge=False)
    for title in ("tokens", "KL (nats)", "largest KL", "top-1", "perplexity", "reference"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.num_tokens:,}",
            f"{row.kl:.5f}",
            f"{row.max_kl:.4f}",
            f"{row.top1:.2%}",
            f"{row.perplexity:.3f}",
            f"{row.reference_perplexity:.3f}",
        )
    return table


def differences_table(found: "Differences") -> "Table":
    """The weights that differ most, as people read them."""
    from rich.markup import escape
    from rich.table import Table

    here, there = found.formats
    title = (
        f"{found.num_identical:,} of {found.num_weights:,} weights have the same bytes in "
        f"{escape(found.there)} ({here} here, {there} there)"
    )
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    if found.largest:
        table.add_column("weights that differ most")
        table.add_column("what")
        table.add_column("relative", justify="right")
    for row in found.largest:
        relative = "-" if row.relative is None else f"{row.relative:.3g}"
        table.add_row(escape(row.name), escape(row.what), relative)
    if found.relative is not None and found.largest:
        table.caption = f"relative difference over all weights that differ {found.relative:.4g}"
    return table


def _print(found: "Verification") -> None:
    from rich.console import Console
    from rich.markup import escape

    out = Console(highlight=False)
    out.print(f"[bold]{found.path}[/]: {found.kind}")
    for item in found.checks:
        mark = "[green]ok[/]   " if item.is_ok else "[red]wrong[/]"
        out.print(f"{mark} {item.name}")
        for problem in item.problems:
            out.print(f"      {escape(problem)}", soft_wrap=True)
    if found.comparison is not None:
        out.print(comparison_table([found.comparison]))
    if found.differences is not None:
        out.print(differences_table(found.differences))
