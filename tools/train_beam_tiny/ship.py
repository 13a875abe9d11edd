"""Turns a finished training run into package data: checkpoint, texts and model card.

    python -m tools.train_beam_tiny.ship RUN

RUN is the output folder of train.py. Perplexities come from transformers' BeamForCausalLM on the
checkpoint just written, shares from the run's greedy replies (weights rounded to bf16).
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, BeamForCausalLM

from . import corpus, evaluate, export, held_out
from .dialogues.compose import CLOSED_KINDS, dialogue
from .rendering import ASSETS, CHECKPOINT, Renderer
from .train import load_weights

_NUM_SHIPPED, _NUM_CALIBRATION, _NUM_CALIBRATION_PROSE = 120, 112, 16
_PROSE_CHARS = 1500


def held_out_rows(count: int) -> list[dict[str, Any]]:
    """The first `count` held-out dialogues as beam_trt.assets reads them."""
    renderer, rows = Renderer(), []
    for item in held_out.dialogues(count):
        prompt, text = renderer.prompt(item), renderer.text(item)
        rows.append(
            {
                "kind": item.kind,
                "effort": item.effort,
                "preserve_thinking": item.preserve_thinking,
                "messages": item.messages,
                "tools": item.tools,
                "expected": item.expected,
                "prompt_chars": len(prompt),
                "text": text,
            }
        )
    return rows


def calibration_rows() -> list[dict[str, Any]]:
    """Dialogues and prose of the training side, rendered."""
    renderer, rng = Renderer(), random.Random(7)
    rows = [{"text": renderer.text(dialogue(rng))} for _ in range(_NUM_CALIBRATION)]
    prose, _ = corpus.split_held_out(corpus.documents())
    step = len(prose) // _NUM_CALIBRATION_PROSE
    return rows + [{"text": t[:_PROSE_CHARS]} for t in prose[::step][:_NUM_CALIBRATION_PROSE]]


def write_texts() -> None:
    """held_out.txt, held_out_dialogues.jsonl and calibration.jsonl."""
    _, prose = corpus.split_held_out(corpus.documents())
    (ASSETS / "held_out.txt").write_text("<|endoftext|>".join(prose), encoding="utf-8")
    for name, rows in (
        ("held_out_dialogues.jsonl", held_out_rows(_NUM_SHIPPED)),
        ("calibration.jsonl", calibration_rows()),
    ):
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (ASSETS / name).write_text("".join(lines), encoding="utf-8")


def measure(run: Path) -> dict[str, Any]:
    """Everything the model card says about quality."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    model = BeamForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.bfloat16).eval()
    _, prose = corpus.split_held_out(corpus.documents())
    replies = json.loads((run / "generated.json").read_text())
    asked = held_out.dialogues(len(replies))
    renderer = Renderer()
    report = evaluate.summary(evaluate.grade(tokenizer, asked, replies))
    report["prose_perplexity"] = evaluate.perplexity(model, tokenizer, prose)
    texts = [renderer.text(item) for item in asked[:_NUM_SHIPPED]]
    report["dialogue_perplexity"] = evaluate.perplexity(model, tokenizer, texts)
    return report


def card(report: dict[str, Any], log: list[dict[str, Any]], prose_tokens: int, size: int) -> str:
    """The model card, with the run's numbers."""
    last = log[-1]
    everything = report["all"]
    efforts = "\n".join(
        f"| {name} | {row['count']} | {row['parses']:.1%} | {row['right']:.1%} "
        f"| {row['reasoning_tokens']} |"
        for name, row in report["by_effort"].items()
    )
    kinds = "\n".join(
        f"| {name} | {row['count']} | {row['parses']:.1%} | {row['right']:.1%} |"
        for name, row in report["by_kind"].items()
    )
    apart = [row for name, row in report["by_kind"].items() if name not in CLOSED_KINDS]
    open_count = sum(row["count"] for row in apart)
    open_right = sum(row["right"] * row["count"] for row in apart) / open_count
    template = Path(__file__).with_name("model_card.md").read_text(encoding="utf-8")
    return template.format(
        parameters=f"{size / 1e6:.2f}",
        steps=last["step"] + 1,
        tokens=f"{last['tokens'] / 1e6:.0f}",
        prose_tokens=f"{prose_tokens / 1e6:.2f}",
        train_loss=last["train_loss"],
        written_loss=last["held_out_written_loss"],
        prose_perplexity=f"{report['prose_perplexity']:.1f}",
        dialogue_perplexity=f"{report['dialogue_perplexity']:.2f}",
        count=everything["count"],
        parses=f"{everything['parses']:.1%}",
        right=f"{everything['right']:.1%}",
        closed=", ".join(sorted(CLOSED_KINDS)),
        open_count=open_count,
        open_right=f"{open_right:.1%}",
        minutes=f"{last['seconds'] / 60:.1f}",
        efforts=efforts,
        kinds=kinds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    run: Path = parser.parse_args().run
    model = export.beam_model(load_weights(run))
    export.save(model, CHECKPOINT)
    for file in CHECKPOINT.iterdir():
        file.chmod(0o644)
    write_texts()
    report = measure(run)
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    encoder = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    prose, _ = corpus.split_held_out(corpus.documents())
    prose_tokens = sum(len(e.ids) + 1 for e in encoder.encode_batch(prose))
    size = sum(p.numel() for p in model.parameters())
    (CHECKPOINT / "README.md").write_text(card(report, log, prose_tokens, size), encoding="utf-8")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
