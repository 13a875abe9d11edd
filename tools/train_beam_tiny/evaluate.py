"""Evaluates a beam-tiny checkpoint with transformers' own BeamForCausalLM.

    python -m tools.train_beam_tiny.evaluate CHECKPOINT --count 200

Prints one JSON object: held-out perplexity of prose and dialogues, the shares of held-out dialogues
whose greedy reply parses and is right, by kind and by effort, and the mean reasoning length.
"""

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, BeamForCausalLM, PreTrainedTokenizerBase

from . import held_out
from .dialogues.exchange import EFFORTS, Dialogue
from .grading import is_right, parse
from .rendering import Renderer


@dataclass(frozen=True, slots=True)
class Graded:
    """One dialogue's grade; reasoning_tokens is None where the reply did not parse."""

    kind: str
    effort: str
    parses: bool
    right: bool
    reasoning_tokens: int | None


def grade(
    tokenizer: PreTrainedTokenizerBase, asked: list[Dialogue], replies: list[list[int]]
) -> list[Graded]:
    """Grade the token ids generated after every dialogue's prompt."""
    renderer, graded = Renderer(), []
    for dialogue, reply in zip(asked, replies, strict=True):
        new = tokenizer.decode(reply, skip_special_tokens=False)
        message = parse(tokenizer, dialogue, renderer.prompt(dialogue), new)
        reasoning = (message or {}).get("reasoning_content", "")
        graded.append(
            Graded(
                kind=dialogue.kind,
                effort=dialogue.effort,
                parses=message is not None,
                right=message is not None and is_right(dialogue, message),
                reasoning_tokens=None
                if message is None
                else len(tokenizer(reasoning)["input_ids"]),
            )
        )
    return graded


def summary(graded: list[Graded]) -> dict[str, Any]:
    """Shares by kind and by effort, and over all."""

    def shares(items: list[Graded]) -> dict[str, Any]:
        lengths = [g.reasoning_tokens for g in items if g.reasoning_tokens is not None]
        return {
            "count": len(items),
            "parses": round(sum(g.parses for g in items) / len(items), 4),
            "right": round(sum(g.right for g in items) / len(items), 4),
            "reasoning_tokens": round(sum(lengths) / max(len(lengths), 1), 1),
        }

    by_kind: dict[str, list[Graded]] = defaultdict(list)
    for each in graded:
        by_kind[each.kind].append(each)
    by_effort = {e: [g for g in graded if g.effort == e] for e in EFFORTS}
    return {
        "all": shares(graded),
        "by_effort": {e: shares(items) for e, items in by_effort.items() if items},
        "by_kind": {kind: shares(by_kind[kind]) for kind in sorted(by_kind)},
    }


@torch.no_grad()  # type: ignore[untyped-decorator]
def generate(
    model: BeamForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    asked: list[Dialogue],
    rows: int = 16,
) -> list[list[int]]:
    """Greedy replies, in the order asked; prompts of similar length share a batch."""
    renderer = Renderer()
    prompts = [tokenizer(renderer.prompt(d))["input_ids"] for d in asked]
    order = sorted(range(len(asked)), key=lambda i: len(prompts[i]))
    replies: list[list[int]] = [[] for _ in asked]
    stops = set(model.generation_config.eos_token_id)
    for begin in range(0, len(order), rows):
        chosen = order[begin : begin + rows]
        inputs = tokenizer.pad(
            {"input_ids": [prompts[i] for i in chosen]}, padding_side="left", return_tensors="pt"
        )
        out = model.generate(**inputs, max_new_tokens=256, do_sample=False)
        for i, row in zip(chosen, out[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
            end = next((n + 1 for n, token in enumerate(row) if token in stops), len(row))
            replies[i] = row[:end]
    return replies


@torch.no_grad()  # type: ignore[untyped-decorator]
def perplexity(
    model: BeamForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    texts: list[str],
    max_tokens: int = 1024,
) -> float:
    """exp of the mean next-token loss over all texts, each cut to `max_tokens`."""
    total, count = 0.0, 0
    for text in texts:
        ids = torch.tensor([tokenizer(text)["input_ids"][:max_tokens]])
        if ids.shape[1] < 2:
            continue
        logits = model(ids).logits[0, :-1].float()
        total += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        count += ids.shape[1] - 1
    return float(torch.tensor(total / count).exp())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--count", type=int, default=200)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.checkpoint)
    model = BeamForCausalLM.from_pretrained(args.checkpoint, dtype=torch.bfloat16).eval()
    asked = held_out.dialogues(args.count)
    report = summary(grade(tokenizer, asked, generate(model, tokenizer, asked)))
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
