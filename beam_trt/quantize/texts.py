"""Calibration text: from a file, through the checkpoint's own tokenizer, to token ids."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from beam_trt.checkpoint.sidecars import TOKENIZER
from beam_trt.errors import CheckpointError, ConfigError

MAX_SAMPLE_TOKENS = 1024
"""Longer texts are cut: twice the attention window, so that both kinds of layers see both sides."""

DEFAULT_SAMPLES = 128


def read_texts(path: Path) -> list[str]:
    """Texts of a file: JSON lines (each a string or an object with `text`), or plain text whose
    samples are separated by blank lines. Raises ConfigError when there is no text in it."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: cannot be read as UTF-8 text: {error}. Give a readable text file."
        ) from error
    if path.suffix in (".jsonl", ".json"):
        lines = enumerate(content.splitlines(), start=1)
        texts = [_line_text(path, number, line) for number, line in lines if line.strip()]
    else:
        texts = [part.strip("\n") for part in content.split("\n\n")]
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise ConfigError(
            f"{path}: expected calibration text, found none. Give a file with real text."
        )
    return texts


def tokenize(folder: Path, texts: Sequence[str], num_samples: int) -> list[list[int]]:
    """Token ids of the first `num_samples` texts that hold any, cut to MAX_SAMPLE_TOKENS each; no
    special tokens are added. Raises CheckpointError when `folder` has no tokenizer."""
    from transformers import AutoTokenizer

    if not (folder / TOKENIZER).exists():
        raise CheckpointError(
            f"{folder}: expected {TOKENIZER} to calibrate on text, found none. Copy the tokenizer "
            "of the original model into this folder."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder}: its tokenizer cannot be loaded: {error}. Copy the tokenizer of the "
            "original model again."
        ) from error
    samples: list[list[int]] = []
    for text in texts:
        if len(samples) == num_samples:
            break
        ids = tokenizer(text, add_special_tokens=False).input_ids[:MAX_SAMPLE_TOKENS]
        if ids:
            samples.append(ids)
    return samples


def _line_text(path: Path, number: int, line: str) -> str:
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(
            f"{path}, line {number}: expected one JSON value a line, found {error}. "
            "Rename the file to .txt when it is plain text."
        ) from error
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise ConfigError(
            f'{path}, line {number}: expected a string or {{"text": ...}}, found '
            f"{type(value).__name__}."
        )
    return text
