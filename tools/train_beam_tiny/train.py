"""Trains beam-tiny on one GPU (or, a few steps, on a CPU) and writes weights and greedy outputs.

    python -m tools.train_beam_tiny.train --build build/beam_tiny --out OUT --steps 6000

Reads the tokenizer of the checkpoint folder and BUILD/prose.npy (see prepare.py). Writes
OUT/weights_0.safetensors and weights_1.safetensors (FP32, BeamForCausalLM's names; two files
because transfers cap a file), OUT/log.jsonl and OUT/generated.json (tokens after every held-out
prompt, from weights rounded to bf16).
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from . import decode, held_out, shards
from .model import Attend, Batch, TrainableBeam, masked_attention, masks
from .optimizer import Muon, orthogonalized, split_parameters
from .packing import FIRST, PADDING, PROSE, TOKEN_MASK, WRITTEN, encoded, rows
from .rendering import CHECKPOINT, Renderer
from .shape import SHAPE

_PROMPT_WEIGHT, _PROSE_WEIGHT = 0.1, 0.4
_STOPS = set(SHAPE["eos_token_id"])


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak learning rates; every one follows the same warm-up, plateau and linear decay."""

    muon: float = 0.02
    embedding: float = 0.01
    head: float = 0.004
    router: float = 0.001
    small: float = 0.003
    balance: float = 0.003


def factor_at(step: int, steps: int, warmup: int = 100, plateau: float = 0.4) -> float:
    """Linear warm-up, constant until `plateau` of all steps, then linear to 0."""
    if step < warmup:
        return (step + 1) / warmup
    decay_from = max(int(steps * plateau), warmup)
    return 1.0 if step < decay_from else (steps - step) / (steps - decay_from)


def unpack(packed: npt.NDArray[Any], device: str) -> tuple[Batch, torch.Tensor, torch.Tensor]:
    """(batch, targets, weights) of packed rows; weights [rows, length] fp32 are zero where the
    next token belongs to another document."""
    bits = torch.from_numpy(packed.astype(np.int32)).to(device, non_blocking=True)
    tokens = (bits & TOKEN_MASK).long()
    first = (bits & FIRST) > 0
    documents = first.cumsum(1)
    index = torch.arange(bits.shape[1], device=device).expand_as(bits)
    positions = index - torch.where(first, index, 0).cummax(1).values
    real = (bits & PADDING) == 0
    targets = tokens.roll(-1, 1)
    ahead = bits.roll(-1, 1)
    weights = torch.full(bits.shape, _PROMPT_WEIGHT, device=device)
    weights = torch.where((ahead & PROSE) > 0, _PROSE_WEIGHT, weights)
    weights = torch.where((ahead & WRITTEN) > 0, 1.0, weights)
    weights = weights * (((ahead & (FIRST | PADDING)) == 0) & real)
    weights[:, -1] = 0
    return Batch(tokens, documents, positions, real), targets, weights


def _flex(batch: Batch, window: int) -> tuple[Attend, Attend]:
    """Attention that skips blocks outside the document and the window (CUDA)."""
    documents = batch.documents
    rows_, length = documents.shape

    def full(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (documents[b, q] == documents[b, k])

    def sliding(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q >= k) & (q - k < window) & (documents[b, q] == documents[b, k])

    def attend_with(rule: Any) -> Attend:
        mask = create_block_mask(rule, rows_, None, length, length, device=documents.device)

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            out = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
            assert isinstance(out, torch.Tensor)
            return out

        return attend

    return attend_with(full), attend_with(sliding)


def losses(
    model: TrainableBeam, batch: Batch, targets: torch.Tensor, weights: torch.Tensor, flex: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(weighted mean loss, loss of every token, expert loads)."""
    if flex:
        full, sliding = _flex(batch, model.window)
    else:
        full, sliding = (masked_attention(mask) for mask in masks(batch, model.window))
    hidden, loads = model(batch, full, sliding)
    logits = model.logits(hidden)
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    each = each.view_as(weights)
    return (each * weights).sum() / weights.sum(), each, loads


def _balance(model: TrainableBeam, loads: torch.Tensor, rate: float) -> None:
    """DeepSeek-V3's update: raise the selection bias of experts below the mean load, lower the
    others. The mean stays zero, since only differences select."""
    routers = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
    for router, load in zip(routers, loads, strict=True):
        router.e_score_correction_bias += rate * torch.sign(1.0 - load)
        router.e_score_correction_bias -= router.e_score_correction_bias.mean()


def _adam(
    model: nn.Module, rest: dict[str, nn.Parameter], rates: Rates, fused: bool
) -> torch.optim.AdamW:
    def group(names: list[str], rate: float, decay: float) -> dict[str, Any]:
        return {"params": [rest[n] for n in names], "peak": rate, "lr": rate, "weight_decay": decay}

    embedding = [n for n in rest if "embed_tokens" in n]
    head = [n for n in rest if "lm_head" in n]
    router = [n for n in rest if "mlp.gate.weight" in n]
    small = [n for n in rest if n not in (*embedding, *head, *router)]
    groups = [
        group(router, rates.router, 0.01),
        group(embedding, rates.embedding, 0.0),
        group(head, rates.head, 0.05),
        group(small, rates.small, 0.0),
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-10, fused=fused)


def save_weights(model: nn.Module, folder: Path) -> None:
    """FP32 weights and selection biases in two files of about equal size."""
    state = {
        name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()
    }
    names = sorted(state)
    save_file({n: state[n] for n in names[::2]}, folder / "weights_0.safetensors")
    save_file({n: state[n] for n in names[1::2]}, folder / "weights_1.safetensors")


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    """What save_weights wrote."""
    halves: list[dict[str, torch.Tensor]] = [
        load_file(folder / f"weights_{i}.safetensors") for i in (0, 1)
    ]
    return halves[0] | halves[1]


def _held_out_rows(encoder: Tokenizer) -> npt.NDArray[Any]:
    renderer = Renderer()
    asked = held_out.dialogues(1000, seed=1_000_000)
    return rows((encoded(encoder, renderer.text(item)) for item in asked), 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--rows", type=int, default=128, help="rows of 1024 tokens a step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--resume", type=Path, help="folder with weights to start from")
    parser.add_argument("--rate-scale", type=float, default=1.0)
    parser.add_argument("--plateau", type=float, default=0.4)
    parser.add_argument("--masked", action="store_true", help="SDPA with masks, not flex attention")
    parser.add_argument("--asked", type=int, default=1024, help="held-out dialogues to decode")
    parser.add_argument("--max-seconds", type=float, default=540.0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    tokenizer = CHECKPOINT / "tokenizer.json"
    memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else args.out
    folder = memory / f"beam_tiny_shards_{args.seed}"
    workers = shards.start(folder, tokenizer, args.build / "prose.npy", args.seed, args.workers)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    model = TrainableBeam(SHAPE, torch.bfloat16 if device == "cuda" else torch.float32).to(device)
    with torch.no_grad():
        model.lm_head.weight.normal_(std=0.02)
    if args.resume:
        model.load_state_dict(load_weights(args.resume), strict=True)
    matrices, rest = split_parameters(model)
    rates, decay = Rates(), 0.1
    muon = Muon(matrices, decay=decay, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    adam = _adam(model, rest, rates, fused=device == "cuda")
    flex = device == "cuda" and not args.masked
    compiled = torch.compile(losses, dynamic=False) if device == "cuda" else losses
    if device == "cuda":
        from . import optimizer

        optimizer.orthogonalized = torch.compile(orthogonalized, dynamic=False)
    encoder = Tokenizer.from_file(str(tokenizer))
    checked, checked_targets, checked_weights = unpack(_held_out_rows(encoder), device)
    log = (args.out / "log.jsonl").open("a")
    stream = shards.read(folder, args.workers)
    per_step = args.rows // shards.ROWS_PER_SHARD

    def check(step: int, loss: float, tokens: int) -> None:
        with torch.no_grad():
            _, each, loads = losses(model, checked, checked_targets, checked_weights, flex=False)
        row = {
            "step": step, "tokens": tokens, "seconds": round(time.monotonic() - began, 1),
            "train_loss": round(loss, 4),
            "held_out_written_loss": round(each[checked_weights == 1].mean().item(), 4),
            "worst_load": round(loads.max().item(), 2), "least_load": round(loads.min().item(), 2),
        }  # fmt: skip
        print(json.dumps(row), flush=True)
        log.write(json.dumps(row) + "\n")
        log.flush()

    tokens, saved, averaged = 0, time.monotonic(), torch.zeros((), device=device)
    for step in range(args.steps):
        packed = np.concatenate([next(stream) for _ in range(per_step)])
        batch, targets, weights = unpack(packed, device)
        loss, _, loads = compiled(model, batch, targets, weights, flex)
        loss.backward()
        factor = factor_at(step, args.steps, plateau=args.plateau) * args.rate_scale
        for group in adam.param_groups:
            group["lr"] = group["peak"] * factor
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step(rates.muon * factor)
        adam.step()
        model.zero_grad(set_to_none=True)
        with torch.no_grad():
            _balance(model, loads, rates.balance * factor)
            averaged = loss.detach() if step == 0 else averaged.lerp(loss.detach(), 0.05)
        tokens += packed.size
        if step % 250 == 0 or step == args.steps - 1 or step in (20, 50, 100):
            check(step, averaged.item(), tokens)
            if time.monotonic() - saved > 120:
                save_weights(model, args.out)
                saved = time.monotonic()
            if time.monotonic() - began > args.max_seconds:
                print("out of time: stopping before the schedule ends", flush=True)
                break
    save_weights(model, args.out)
    for process in workers:
        process.kill()

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("mlp.gate.weight"):
                parameter.copy_(parameter.to(torch.bfloat16))
    asked = held_out.dialogues(args.asked)
    generated = decode.greedy(model, held_out.prompts(encoder, asked), _STOPS, max_new=256)
    (args.out / "generated.json").write_text(json.dumps(generated))
    right: dict[str, list[bool]] = {}
    for item, new in zip(asked, generated, strict=True):
        text = encoder.decode(new, skip_special_tokens=False)
        right.setdefault(item.kind, []).append(held_out.same_result(item, text))
    for kind, results in sorted(right.items()):
        print(f"{kind:24} {sum(results):4} of {len(results):4} right")
    total = [r for results in right.values() for r in results]
    print(f"all: {sum(total)} of {len(total)} right; {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
