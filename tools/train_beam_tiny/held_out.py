"""The held-out dialogues: which they are, and a quick comparison for the training log."""

import random
import re

from tokenizers import Tokenizer

from .dialogues.compose import cut_at_call, dialogue
from .dialogues.exchange import Dialogue
from .rendering import Renderer

_REASONING = re.compile(r"<\|channel\|>analysis<\|message\|>.*?<\|end\|><\|start\|>assistant", re.S)
MAX_PROMPT_TOKENS = 900


def dialogues(count: int, seed: int = 2_000_000) -> list[Dialogue]:
    """`count` dialogues whose contents training never uses; those with tools are asked for the
    call and for the final answer in turns."""
    rng = random.Random(seed)
    found: list[Dialogue] = []
    while len(found) < count:
        whole = dialogue(rng, held_out=True)
        asked_for_call = cut_at_call(whole)
        found.append(asked_for_call if asked_for_call and rng.random() < 0.6 else whole)
    return found


def prompts(encoder: Tokenizer, asked: list[Dialogue]) -> list[list[int]]:
    """The encoded prompt of each dialogue."""
    renderer = Renderer()
    return [encoder.encode(renderer.prompt(d), add_special_tokens=False).ids for d in asked]


def same_result(dialogue: Dialogue, generated: str) -> bool:
    """Whether the text after the reasoning is the right one, character by character: a stricter
    and cheaper test than parsing, for the training log."""
    renderer = Renderer()
    right = renderer.text(dialogue)[len(renderer.prompt(dialogue)) :]
    return _REASONING.sub("", generated, count=1) == _REASONING.sub("", right, count=1)
