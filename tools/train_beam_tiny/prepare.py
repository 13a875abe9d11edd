"""Trains the tokenizer and writes what training reads: the tokenizer into the checkpoint folder,
the encoded prose into a build folder.

    python -m tools.train_beam_tiny.prepare build/beam_tiny
"""

import argparse
import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from . import corpus, tokenizer
from .dialogues.compose import dialogue
from .rendering import CHECKPOINT, Renderer

_NUM_DIALOGUES = 12_000
_RESPONSE_TEMPLATE = Path(__file__).with_name("response_template.json")


def encode_prose(encoder: Tokenizer, texts: list[str]) -> npt.NDArray[Any]:
    """[num_tokens] uint16; every document ends with <|endoftext|> (id 0)."""
    pieces = [np.array([*e.ids, 0], dtype=np.uint16) for e in encoder.encode_batch(texts)]
    return np.concatenate(pieces)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    prose, _ = corpus.split_held_out(corpus.documents())
    rng, renderer = random.Random(0), Renderer()
    rendered = [renderer.text(dialogue(rng)) for _ in range(_NUM_DIALOGUES)]
    encoder = tokenizer.train(prose + rendered)
    tokenizer.write(encoder, _RESPONSE_TEMPLATE, CHECKPOINT)
    encoded = encode_prose(encoder, prose)
    np.save(folder / "prose.npy", encoded)
    lengths = [len(e.ids) for e in encoder.encode_batch(rendered[:2000])]
    print(f"prose: {len(encoded)} tokens; a dialogue: {np.mean(lengths):.0f} tokens on average")


if __name__ == "__main__":
    main()
