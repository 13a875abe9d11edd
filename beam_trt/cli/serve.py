"""`beam-trt serve`: Triton on a build, from start to a clean stop."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from beam_trt.cli.output import console, json_option

if TYPE_CHECKING:
    from beam_trt.triton.server import TritonServer


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--http-port", default=8000, show_default=True, help="HTTP and server-sent events.")
@click.option("--grpc-port", default=8001, show_default=True, help="gRPC.")
@click.option("--metrics-port", default=8002, show_default=True, help="Prometheus metrics.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--exit-timeout",
    default=30,
    show_default=True,
    help="Seconds that open requests may go on after Ctrl-C or SIGTERM.",
)
@click.option("--verbose", is_flag=True, help="Show tritonserver's whole log.")
@json_option
def serve(
    folder: Path,
    http_port: int,
    grpc_port: int,
    metrics_port: int,
    host: str,
    exit_timeout: int,
    verbose: bool,
    as_json: bool,
) -> None:
    """Serve DIR, a folder that `beam-trt build` wrote, or a Triton repository, until Ctrl-C.

    --json prints one line when the server is ready.
    """
    from beam_trt.triton.serve import serve as run
    from beam_trt.triton.server import ServerOptions, find_repository

    options = ServerOptions(
        repository=find_repository(folder),
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        host=host,
        exit_timeout_s=exit_timeout,
    )
    began = time.monotonic()

    def on_ready(server: "TritonServer") -> None:
        seconds = time.monotonic() - began
        if as_json:
            _print_line(server, seconds)
        else:
            _print_panel(server, seconds)

    def on_note(note: str) -> None:
        console.print(note, markup=False)

    if not as_json:
        console.print(f"starting tritonserver on {options.repository}", markup=False)
    run(options, on_ready, on_note, on_note if verbose else None)
    if not as_json:
        console.print("stopped")


def _print_line(server: "TritonServer", seconds: float) -> None:
    ready = {
        "http": server.http_url,
        "grpc": server.grpc_url,
        "metrics": server.metrics_url,
        "pid": server.pid,
        "ready_s": round(seconds, 3),
    }
    click.echo(json.dumps(ready))


def _print_panel(server: "TritonServer", seconds: float) -> None:
    from rich.panel import Panel
    from rich.text import Text

    lines = (
        f"HTTP     {server.http_url}",
        f"gRPC     {server.grpc_url}",
        f"metrics  {server.metrics_url}",
    )
    console.print(Panel(Text("\n".join(lines)), title=f"ready in {seconds:.1f} s", expand=False))
    url = f"{server.http_url}/v2/models/beam/generate_stream"
    body = '{"text_input": "Hello", "max_tokens": 32, "stream": true}'
    console.print("Try:", style="bold")
    console.print(
        f"  beam-trt generate Hello --url {server.grpc_url}", markup=False, soft_wrap=True
    )
    console.print(
        f"  curl -N {url} -H 'Content-Type: application/json' -d '{body}'",
        markup=False,
        soft_wrap=True,
    )
    console.print("Ctrl-C stops it.", style="dim")
