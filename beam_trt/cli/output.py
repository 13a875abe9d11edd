"""What every command prints with: one console for people on stderr, JSON for scripts on stdout."""

import json
from typing import Any

import click
from rich.console import Console

console = Console(stderr=True, highlight=False)
"""Progress, tables and notes for people; stdout stays free for results."""

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object for scripts."
)


def print_json(value: Any) -> None:
    """One JSON object on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
