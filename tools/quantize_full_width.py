"""Peak memory and speed of `quantize` at the published width: 2 layers, one dense and one MoE.

    python tools/quantize_full_width.py FOLDER [--experts 256] [--tokens 1024] [--threads 2]

Writes about 24 GB of random bf16 weights into FOLDER/source, quantizes them to FP8 and then to
calibrated NVFP4, each in a process of its own whose memory is sampled, and removes everything.
Needs about 40 GB of disk. The last line is one JSON object.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from transformers import BeamConfig

from beam_trt.checkpoint.names import checkpoint_tensors
from beam_trt.checkpoint.reader import TORCH_DTYPES
from beam_trt.checkpoint.writer import ShardWriter
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.config.tensors import TensorSpec

console = Console(stderr=True)

CHILD = """
import json, sys
from pathlib import Path
import torch
from beam_trt import quantize
from beam_trt.config.quant import Precision, QuantConfig
torch.set_num_threads(int(sys.argv[4]))
generator = torch.Generator().manual_seed(0)
lengths = [512] * (int(sys.argv[5]) // 512) or [int(sys.argv[5])]
ids = [torch.randint(0, 100000, (n,), generator=generator).tolist() for n in lengths]
quant = QuantConfig(Precision(sys.argv[3]))
report = quantize.run(Path(sys.argv[1]), Path(sys.argv[2]), quant, ids)
found = report.to_dict()
keys = ("seconds", "total_before", "total_after", "relative_error", "warnings")
print(json.dumps({key: found[key] for key in keys}))
"""


def full_width_config(num_experts: int) -> BeamConfig:
    """The published shape, but two layers: dense with a window, MoE with full attention."""
    return BeamConfig(
        num_hidden_layers=2,
        num_experts=num_experts,
        n_group=8,
        layer_types=["sliding_attention", "full_attention"],
        mlp_layer_types=["dense", "sparse"],
        dtype=torch.bfloat16,
    )


def write_source(folder: Path, config: BeamConfig) -> int:
    """Random weights in shards of 5 GB; bytes of tensor data."""
    folder.mkdir(parents=True)
    config.save_pretrained(folder)
    raw = json.loads((folder / "config.json").read_text())
    model = ModelConfig.from_hf(raw)
    specs = [
        TensorSpec(tensor.name, tensor.dtypes[0], tensor.shape)
        for tensor in checkpoint_tensors(model, QuantConfig(Precision.BF16))
    ]
    writer = ShardWriter(folder, specs)
    for spec, tensor in zip(specs, _random_tensors(specs), strict=True):
        writer.write(spec.name, tensor)
    writer.commit()
    return writer.num_bytes


def _random_tensors(specs: list[TensorSpec]) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    pool = torch.randn(1 << 24, generator=generator)
    for number, spec in enumerate(specs):
        dtype = TORCH_DTYPES[spec.dtype]
        if spec.name.endswith("norm.weight"):
            yield torch.ones(spec.shape, dtype=dtype)
            continue
        count = torch.Size(spec.shape).numel()
        # Random numbers are slow to make: each tensor takes the pool from another place.
        start = number * 7919 * 61 % len(pool)
        scale = spec.shape[-1] ** -0.5 * (1 + number % 7 / 10)
        values = (torch.cat((pool[start:], pool[:start])) * scale).to(dtype)
        yield values.repeat(-(-count // len(values)))[:count].view(spec.shape)


def measure(source: Path, out: Path, precision: str, threads: int, tokens: int) -> dict[str, Any]:
    """Quantize in a process of its own; its report, with the memory sampled from /proc in bytes.
    `rss_curve` has ten points, each the largest of its tenth of the time."""
    command = [sys.executable, "-W", "ignore", "-c", CHILD, str(source), str(out), precision]
    command += [str(threads), str(tokens)]
    started = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    samples: list[int] = []
    peak = 0
    while process.poll() is None:
        memory = _memory(process.pid)
        samples.append(memory.get("VmRSS", 0))
        peak = max(peak, memory.get("VmHWM", 0))
        time.sleep(0.1)
    stdout = process.communicate()[0]
    if process.returncode:
        raise click.ClickException(f"quantize to {precision} failed, see above")
    found: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    tenth = -(-len(samples) // 10)
    found["precision"] = precision
    found["wall_seconds"] = round(time.monotonic() - started, 1)
    found["peak_rss"] = peak
    found["rss_curve"] = [max(samples[i : i + tenth]) for i in range(0, len(samples), tenth)]
    found["read_gb_per_s"] = round(found["total_before"] / found["seconds"] / 1e9, 3)
    return found


def _memory(pid: int) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    fields = [line.split() for line in lines if line.startswith(("VmRSS", "VmHWM"))]
    return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--experts", default=256, show_default=True, help="Experts of the MoE layer, a multiple of 16."
)
@click.option("--tokens", default=1024, show_default=True, help="Calibration tokens for NVFP4.")
@click.option("--threads", default=2, show_default=True, help="Threads of torch.")
def main(folder: Path, experts: int, tokens: int, threads: int) -> None:
    """Measure into the new folder FOLDER, which is removed at the end."""
    if folder.exists():
        raise click.UsageError(
            f"{folder}: expected a new folder, because it is removed at the end."
        )
    torch.set_num_threads(threads)
    results = []
    try:
        started = time.monotonic()
        num_bytes = write_source(folder / "source", full_width_config(experts))
        seconds = time.monotonic() - started
        console.print(f"{num_bytes / 1e9:.1f} GB of random weights in {seconds:.0f} s")
        for precision in ("fp8", "nvfp4"):
            found = measure(folder / "source", folder / precision, precision, threads, tokens)
            shutil.rmtree(folder / precision)
            results.append(found)
            console.print(
                f"{precision}: peak RSS {found['peak_rss'] / 1e9:.2f} GB, "
                f"{found['seconds']:.0f} s, {found['read_gb_per_s']:.2f} GB/s of bf16"
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    click.echo(json.dumps({"experts": experts, "threads": threads, "results": results}))


if __name__ == "__main__":
    main()
