"""`make demo`: the whole product on one screen, on a machine with no GPU.

Runs the real commands one after the other, each as a user would type it, and shows what matters of
their `--json`. Everything is written to demo-run/, which is replaced.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

RUN = Path(__file__).parents[1] / "demo-run"
PRECISIONS = ("bf16", "fp8", "nvfp4")
TP = 4
QUESTION = "What is 387 + 256?"
TOOL_REQUEST = "Send 12.5 EUR to Anna."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "send_money",
            "description": "Send money to a person.",
            "parameters": {
                "type": "object",
                "properties": {
                    "to": {"type": "string"},
                    "amount": {"type": "number"},
                    "currency": {"type": "string", "enum": ["EUR", "USD", "GBP"]},
                },
                "required": ["to", "amount", "currency"],
            },
        },
    }
]

out = Console(highlight=False)


def shown(command: list[str]) -> None:
    out.print(Text("$ beam-trt " + " ".join(command), style="bold cyan"))


def run(*command: str, show: bool = True) -> Any:
    """Run one beam-trt command; its progress goes to the terminal, its JSON comes back."""
    if show:
        shown(list(command))
    done = subprocess.run(
        ["beam-trt", *command, "--json"], cwd=RUN, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        out.print(f"[red]beam-trt {command[0]} failed with exit code {done.returncode}[/]")
        sys.exit(1)
    return json.loads(done.stdout)


def megabytes(path: Path) -> float:
    return sum(p.stat().st_size for p in path.rglob("*.safetensors")) / 1e6


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def convert() -> None:
    """The model, its three precisions, and an engine of each at TP=4."""
    run("model", "tiny", "-o", "tiny")
    table = Table(
        "precision", "checkpoint MB", "of bf16", "engine MB, 4 ranks", "seconds", box=None
    )
    for column in table.columns[1:]:
        column.justify = "right"
    source = megabytes(RUN / "tiny")
    for precision in PRECISIONS:
        began = time.perf_counter()
        run("build", "tiny", "--precision", precision, "--tp", str(TP), "-o", precision)
        checkpoint = RUN / precision / "checkpoint"
        size = megabytes(checkpoint) if checkpoint.exists() else source
        engine = megabytes(RUN / precision / "engine")
        seconds = time.perf_counter() - began
        table.add_row(
            precision, f"{size:.2f}", f"{size / source:.0%}", f"{engine:.2f}", f"{seconds:.1f}"
        )
    out.print(table)


def verify() -> None:
    """Each engine against transformers' own BeamForCausalLM on held-out text."""
    table = Table("engine", "KL nats", "top-1 agreement", "perplexity", "of transformers", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for precision in PRECISIONS:
        report = run("verify", f"{precision}/engine", "--reference", "tiny")
        numbers = report["comparison"]
        table.add_row(
            precision,
            f"{numbers['kl']:.5f}",
            f"{numbers['top1']:.2%}",
            f"{numbers['perplexity']:.3f}",
            f"{numbers['reference_perplexity']:.3f}",
        )
    out.print(table)


class Server:
    """`beam-trt serve` in the background, from its ready line to its clean stop."""

    def __init__(self, folder: str) -> None:
        ports = [free_port() for _ in range(3)]
        command = ["serve", folder]
        for name, port in zip(("http", "grpc", "metrics"), ports, strict=True):
            command += [f"--{name}-port", str(port)]
        shown(command)
        began = time.perf_counter()
        self.process = subprocess.Popen(
            ["beam-trt", *command, "--json"], cwd=RUN, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            out.print("[red]the server did not start[/]")
            sys.exit(1)
        self.url = f"grpc://127.0.0.1:{ports[1]}"
        out.print(f"ready after {time.perf_counter() - began:.1f} s at {self.url}")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def stop(self) -> None:
        began = time.perf_counter()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        out.print(f"stopped with exit code {code} after {time.perf_counter() - began:.1f} s")
        left = [p.name for p in Path("/dev/shm").glob(f"beam_trt_{self.process.pid}_*")]
        if code or left:
            out.print(f"[red]not a clean stop: exit code {code}, shared memory {left}[/]")
            sys.exit(1)


def chat(url: str) -> None:
    """One answer with its reasoning, and one typed tool call, parsed."""
    answer = run("generate", QUESTION, "--url", url, "--effort", "high")
    reasoning = answer["reasoning"].replace("\n", "\n" + " " * 13)
    out.print(Text(f"  reasoning  {reasoning}", style="dim"))
    out.print(f"  answer     [bold]{answer['text']}[/]")
    (RUN / "tools.json").write_text(json.dumps(TOOLS), encoding="utf-8")
    answer = run("generate", TOOL_REQUEST, "--url", url, "--tools", "tools.json")
    for call in answer["tool_calls"]:
        arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        out.print(f"  tool call  [bold]{call['function']['name']}[/] {arguments}")


def speed(url: str) -> None:
    """As a client sees it: time to first token and tokens a second."""
    report = run("bench", "throughput", "--url", url, "--clients", "1,8", "--requests", "2")
    table = Table("clients", "first token ms", "per token ms", "tokens/s", box=None)
    for column in table.columns:
        column.justify = "right"
    for load in report["loads"]:
        table.add_row(
            str(load["num_clients"]),
            f"{load['first_token_ms']:.0f}",
            f"{load['per_token_ms']:.1f}",
            f"{load['tokens_per_s']:.0f}",
        )
    out.print(table)


def main() -> None:
    began = time.perf_counter()
    shutil.rmtree(RUN, ignore_errors=True)
    RUN.mkdir()
    convert()
    verify()
    server = Server("nvfp4")
    try:
        chat(server.url)
        speed(server.url)
    finally:
        server.stop()
    cores = os.cpu_count()
    out.print(f"[bold green]done[/] in {time.perf_counter() - began:.0f} s on {cores} CPU cores")


if __name__ == "__main__":
    main()
