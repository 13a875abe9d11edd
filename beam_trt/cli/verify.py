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


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--reference",
    type=click.Path(path_type=Path),
    help="The unquantized model: compare logits on held-out text.",
)
@click.option("--full", is_flag=True, help="Compare on all held-out text instead of a sample.")
@json_option
def verify(path: Path, reference: Path | None, full: bool, as_json: bool) -> None:
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
            path, reference, full, lambda done, total: bar.update(task, completed=done, total=total)
        )
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)
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
