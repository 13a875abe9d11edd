"""`beam-trt plan`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from beam_trt.cli.output import json_option, print_json
from beam_trt.errors import ConfigError

if TYPE_CHECKING:
    from beam_trt.planner.plan import Plan


@click.command()
@click.argument("model", required=False, type=click.Path(path_type=Path))
@click.option("--shape", help="A published shape instead of MODEL: beam-501b.")
@click.option("--precision", default="nvfp4", show_default=True, help="nvfp4, fp8 or bf16.")
@click.option("--experts-only", is_flag=True, help="Quantize routed experts alone.")
@click.option("--tp", type=int, default=1, show_default=True, help="GPUs that share every layer.")
@click.option("--ep", type=int, default=1, show_default=True, help="Groups that share the experts.")
@click.option("--gpu", required=True, help="Name in the GPU table: b200, h200, rtx_pro_6000, ...")
@click.option("--context", type=int, default=131072, show_default=True, help="Tokens a sequence.")
@click.option("--concurrency", type=int, help="Sequences at once; left out: as many as fit.")
@click.option("--kv", type=click.Choice(["bf16", "fp8"]), default="bf16", show_default=True)
@json_option
def plan(
    model: Path | None,
    shape: str | None,
    precision: str,
    experts_only: bool,
    tp: int,
    ep: int,
    gpu: str,
    context: int,
    concurrency: int | None,
    kv: str,
    as_json: bool,
) -> None:
    """Say what fits a GPU and what it would cost, before anything is converted or bought.

    Weights are summed over the engine's own tensor table, KV over the two lifetimes, and times are
    floors: the larger of bytes over bandwidth and operations over rate, operation by operation.

    \b
    beam-trt plan --shape beam-501b --precision nvfp4 --tp 4 --gpu b200
    beam-trt plan --shape beam-501b --precision fp8 --tp 8 --gpu h200 --context 75776
    """
    from beam_trt.config.hardware import Gpu
    from beam_trt.config.mapping import Mapping
    from beam_trt.config.model import ModelConfig
    from beam_trt.config.quant import Precision, QuantConfig
    from beam_trt.planner.plan import Deployment, make_plan
    from beam_trt.planner.shapes import named_shape

    if (model is None) == (shape is None):
        raise ConfigError("plan: give either MODEL, a checkpoint folder, or --shape beam-501b.")
    config = ModelConfig.from_folder(model) if model else named_shape(str(shape))
    made = make_plan(
        Deployment(
            config,
            QuantConfig(Precision.parse(precision), experts_only),
            Mapping(tp_size=tp, ep_size=ep),
            Gpu.named(gpu),
            context=min(context, config.max_position_embeddings),
            concurrency=concurrency,
            kv_bytes=1 if kv == "fp8" else 2,
        )
    )
    if as_json:
        print_json(_as_dict(made))
    else:
        _print(made)


def _as_dict(made: "Plan") -> dict[str, Any]:
    kv = made.memory.kv
    return {
        "memory_bytes_per_gpu": {
            "usable": made.memory.usable,
            "weights": made.memory.weights,
            "activations": made.memory.activations,
            "runtime": made.memory.runtime,
            "free_for_kv": made.memory.free_for_kv,
        },
        "kv_bytes_per_gpu": {
            "full_per_token": kv.full_per_token,
            "window_per_sequence": kv.window * kv.sliding_per_token,
            "sequence": kv.sequence(made.deployment.context),
        },
        "context": made.deployment.context,
        "max_concurrency": made.max_concurrency,
        "max_context": made.max_context,
        "is_tight": made.is_tight,
        "floors": {
            "concurrency": made.concurrency,
            "decode_us": made.decode_us,
            "decode_tokens_per_s": made.decode_tokens_per_s,
            "prefill_tokens": made.prefill_tokens,
            "prefill_us": made.prefill_us,
            "prefill_tokens_per_s": made.prefill_tokens_per_s,
        },
    }


def _print(made: "Plan") -> None:
    from rich.console import Console
    from rich.table import Table

    out = Console(highlight=False)
    deployment, memory, kv = made.deployment, made.memory, made.memory.kv
    title = f"{deployment.quant.precision} on {deployment.mapping.tp_size} x {deployment.gpu.title}"
    table = Table("one GPU's memory", "GB", title=title, title_justify="left")
    table.columns[1].justify = "right"
    for part, size in memory.weights.items():
        table.add_row(f"weights: {part}", f"{size / 1e9:.2f}")
    table.add_row("activations of a step", f"{memory.activations / 1e9:.2f}")
    table.add_row("context, NCCL, graphs (allowance)", f"{memory.runtime / 1e9:.2f}")
    table.add_row("left for KV", f"{memory.free_for_kv / 1e9:.2f}", style="bold")
    out.print(table)
    window = kv.window * kv.sliding_per_token
    out.print(
        f"KV a GPU: {kv.full_per_token / 1024:.1f} KiB a token for ever, "
        f"{window / 2**20:.1f} MiB a sequence for the window; "
        f"{kv.sequence(deployment.context) / 1e9:.2f} GB for {deployment.context:,} tokens"
    )
    verdict = "[yellow]tight[/]" if made.is_tight else "[green]fits[/]"
    out.print(
        f"{verdict}: at most {made.max_concurrency:,} sequences of {deployment.context:,} tokens, "
        f"or one of {made.max_context:,}"
    )
    floors = Table("floor (no implementation is faster)", "ms", "tokens/s")
    for column in floors.columns[1:]:
        column.justify = "right"
    floors.add_row(
        f"decode step, {made.concurrency} sequences",
        f"{sum(made.decode_us.values()) / 1e3:.2f}",
        f"{made.decode_tokens_per_s:,.0f}",
    )
    floors.add_row(
        f"prefill of {made.prefill_tokens:,} tokens",
        f"{sum(made.prefill_us.values()) / 1e3:.1f}",
        f"{made.prefill_tokens_per_s:,.0f}",
    )
    out.print(floors)
