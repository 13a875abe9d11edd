"""`beam-trt bench`."""

from typing import TYPE_CHECKING

import click

from beam_trt.cli.output import console, json_option, print_json
from beam_trt.errors import ConfigError

if TYPE_CHECKING:
    from beam_trt.bench.throughput import Load


@click.group()
def bench() -> None:
    """Measure: tables, JSON and plots."""


@bench.command()
@click.option("--url", default="grpc://127.0.0.1:8001", show_default=True, help="grpc://HOST:PORT")
@click.option("--clients", default="1,8", show_default=True, help="Client counts, one row each.")
@click.option(
    "--requests",
    "num_requests",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Requests each client sends, one after the other.",
)
@click.option("--max-tokens", type=click.IntRange(min=1), default=64, show_default=True)
@click.option("--prompt", default="Count from one to twenty.", show_default=True)
@json_option
def throughput(
    url: str, clients: str, num_requests: int, max_tokens: int, prompt: str, as_json: bool
) -> None:
    """Stream answers to N clients at once from a running server.

    Every answer has exactly --max-tokens tokens (ends of text are ignored), so rows compare.
    Times are the client's: to the first token, between tokens, all tokens over all seconds.
    """
    from beam_trt.bench.throughput import measure
    from beam_trt.runtime.request import SamplingParams
    from beam_trt.serving.answer import GenerateRequest
    from beam_trt.serving.chat import ChatRequest

    if not url.startswith("grpc://"):
        raise ConfigError(f"url: expected grpc://HOST:PORT, found {url!r}.")
    try:
        counts = [int(count) for count in clients.split(",")]
    except ValueError:
        raise ConfigError(f"clients: expected counts like 1,8, found {clients!r}.") from None
    if min(counts) < 1:
        raise ConfigError(f"clients: expected counts of at least 1, found {clients!r}.")
    chat = ChatRequest(messages=({"role": "user", "content": prompt},))
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    request = GenerateRequest(chat=chat, sampling=sampling)
    loads = []
    for count in counts:
        with console.status(f"{count} clients, {num_requests} requests each ..."):
            loads.append(measure(url.removeprefix("grpc://"), [request], count, num_requests))
    if as_json:
        print_json({"url": url, "max_tokens": max_tokens, "loads": [x.to_dict() for x in loads]})
    else:
        _print(loads)


def _print(loads: "list[Load]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("clients", "requests", "first token ms", "p95", "per token ms", "tokens/s")
    for column in table.columns:
        column.justify = "right"
    for load in loads:
        per_token = "-" if load.per_token_ms is None else f"{load.per_token_ms:.1f}"
        table.add_row(
            str(load.num_clients),
            str(load.num_requests),
            f"{load.first_token_ms:.1f}",
            f"{load.first_token_p95_ms:.1f}",
            per_token,
            f"{load.tokens_per_s:.1f}",
        )
    Console(highlight=False).print(table)
