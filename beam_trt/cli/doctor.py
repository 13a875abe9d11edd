"""`beam-trt doctor`: what this machine has, and what that allows."""

from pathlib import Path

import click

from beam_trt.cli.output import json_option, print_json


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Say what this machine has (GPUs, drivers, torch, Triton, TensorRT) and what that allows.

    Findings are never an error: the exit code is 0 whatever is missing.
    """
    from rich.console import Console
    from rich.table import Table

    from beam_trt.doctor import diagnose

    found = diagnose(Path.cwd())
    if as_json:
        print_json(found.to_dict())
        return
    colors = {"ok": "green", "warn": "yellow", "absent": "dim"}
    table = Table("", "what", "found", "meaning", box=None, pad_edge=False)
    for check in found.checks:
        mark = f"[{colors[check.status]}]{check.status}[/]"
        table.add_row(mark, check.name, check.found, f"[dim]{check.meaning}[/]")
    allowed = Table("", "this machine can", "", box=None, pad_edge=False)
    for ability in found.abilities:
        mark = "[green]yes[/]" if ability.possible else "[yellow]no[/]"
        allowed.add_row(mark, ability.name, f"[dim]{ability.reason}[/]")
    out = Console(highlight=False)
    out.print(table)
    out.print()
    out.print(allowed)
