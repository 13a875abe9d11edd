"""Data that ships with the package: the trained checkpoint beam-tiny and the texts it is judged by.

Reads files only; needs neither torch nor transformers.
"""

import json
from importlib.resources import files
from typing import Any


def calibration_texts() -> list[str]:
    """Rendered dialogues and prose from beam-tiny's training distribution, special tokens
    included, for calibrating quantization; tokenize without adding special tokens."""
    return [row["text"] for row in _rows("calibration.jsonl")]


def held_out_texts() -> list[str]:
    """Texts beam-tiny never saw in training, for perplexity: prose first, then whole rendered
    dialogues, special tokens included."""
    prose = files(__name__).joinpath("held_out.txt").read_text(encoding="utf-8")
    return [text for text in prose.split("<|endoftext|>") if text] + [
        row["text"] for row in held_out_dialogues()
    ]


def held_out_dialogues() -> list[dict[str, Any]]:
    """Dialogues beam-tiny never saw, each with the result that counts as right.

    Keys: kind, effort, preserve_thinking, messages and tools (as `apply_chat_template` takes them),
    prompt (rendered, ends with "<|start|>assistant"), text (prompt and a right completion),
    expected: either {"answer": str} or {"tool_calls": [{"name": str, "arguments": {...}}, ...]}.
    """
    rows = _rows("held_out_dialogues.jsonl")
    for row in rows:
        row["prompt"] = row["text"][: row.pop("prompt_chars")]
    return rows


def _rows(name: str) -> list[dict[str, Any]]:
    lines = files(__name__).joinpath(name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
