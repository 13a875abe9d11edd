"""`beam-trt inspect`: what a checkpoint or an engine holds."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from beam_trt.cli.output import json_option, print_json

if TYPE_CHECKING:
    from beam_trt.engine.inspect import Inspection


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def inspect(path: Path, as_json: bool) -> None:
    """Say what a checkpoint or an engine holds: parts, types, sizes, layers, ranks.

    PATH is a checkpoint, an engine, or a build (its engine is meant). Reads headers only.
    """
    from beam_trt.engine.inspect import inspect as look

    found = look(path)
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)


def _print(found: "Inspection") -> None:
    from rich.console import Console
    from rich.table import Table

    model = found.model
    out = Console(highlight=False)
    only = " (experts only)" if found.experts_only else ""
    out.print(f"[bold]{found.path}[/]: {found.kind} in {found.precision}{only}")
    out.print(
        f"{model['num_hidden_layers']} layers, hidden {model['hidden_size']}, "
        f"{model['num_attention_heads']} query and {model['num_key_value_heads']} KV heads of "
        f"{model['head_dim']}, vocabulary {model['vocab_size']}, "
        f"context {model['max_position_embeddings']}"
    )
    out.print(found.attention_schedule)
    out.print(found.mlp_schedule)
    table = Table("part", "parameters", "tensors", "MB", "types", box=None, pad_edge=False)
    for column in table.columns[1:4]:
        column.justify = "right"
    for part in found.parts:
        types = " ".join(part.dtypes)
        size = f"{part.num_bytes / 1e6:,.2f}"
        table.add_row(part.name, f"{part.num_parameters:,}", f"{part.num_tensors:,}", size, types)
    total = f"{found.num_bytes / 1e6:,.2f}"
    tensors = sum(part.num_tensors for part in found.parts)
    table.add_row("total", f"{found.num_parameters:,}", f"{tensors:,}", total, "", style="bold")
    out.print(table)
    for rank, num_bytes in enumerate(found.rank_bytes):
        out.print(f"rank {rank}: {num_bytes / 1e6:,.2f} MB")
    for name, values in found.details.items():
        shown = (
            ", ".join(f"{key} {value}" for key, value in values.items())
            if isinstance(values, dict)
            else ", ".join(values)
        )
        out.print(f"{name}: {shown}", soft_wrap=True)
