"""Trains beam-tiny's byte-level BPE and writes the tokenizer files of the checkpoint folder."""

import json
import re
from collections import Counter
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 2048
MAX_LENGTH = 8192

# The order fixes the ids 0..7; <|endoftext|> is both padding and the end of a raw text.
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|start|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
)
# The last two ids. One token each, so a call's frame costs the model one decision; not special, so
# they survive decoding in either mode.
MARKUP_TOKENS = ('<rfl:parameter name="', "</rfl:parameter>")
PAD_TOKEN = "<|endoftext|>"
# <|end|> is no stop: reasoning ends with <|end|><|start|>assistant and generation goes on.
STOP_TOKENS = ("<|return|>", "<|call|>", "<|endoftext|>")

# A word with at most one leading blank, digits one by one (arithmetic sees every digit), runs of
# punctuation, line breaks, runs of blanks.
_SPLIT = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|[\r\n]|[^\S\r\n]+"
# The same with the blank apart: the first training pass sees words alone.
_SPLIT_BLANKS = r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|[\r\n]|[^\S\r\n]+"
NUM_SPACED_WORDS = 400
_BLANK = "Ġ"  # how byte-level BPE writes a blank


def train(texts: list[str]) -> Tokenizer:
    """A byte-level BPE of 2048 tokens over `texts`, in two passes.

    The first pass learns pieces of words without their leading blank; the second adds, as the last
    merges, "blank + word" for the 400 most frequent words that are one token. So a rare word is
    cut into the same pieces in a sentence, in JSON and in a parameter: what is copied is equal
    token by token, which a small model learns far sooner.
    """
    num_reserved = len(MARKUP_TOKENS) + NUM_SPACED_WORDS
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - num_reserved,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = _pre_tokenizer(_SPLIT_BLANKS)
    pieces.train_from_iterator(texts, trainer)
    state = json.loads(pieces.to_str())["model"]
    vocab: dict[str, int] = state["vocab"]
    merges = [(left, right) for left, right in state["merges"]]

    counts = Counter(word for text in texts for word in re.findall(r" ([A-Za-z]{2,})", text))
    frequent = sorted(counts, key=lambda word: (-counts[word], word))
    spaced = [word for word in frequent if word in vocab][:NUM_SPACED_WORDS]
    for word in spaced:
        vocab[_BLANK + word] = len(vocab)
        merges.append((_BLANK, word))

    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(_SPLIT)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKUP_TOKENS])
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(
            f"tokenizer: expected {VOCAB_SIZE} tokens, got {tokenizer.get_vocab_size()}. "
            "Train on more text."
        )
    return tokenizer


def _pre_tokenizer(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def write(tokenizer: Tokenizer, response_template: Path, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json (with the response template) into `folder`,
    which already holds chat_template.jinja."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,
        eos_token="<|return|>",
        extra_special_tokens=[t for t in SPECIAL_TOKENS if t not in (PAD_TOKEN, "<|return|>")],
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
        response_template=json.loads(response_template.read_text(encoding="utf-8")),
        chat_template=(folder / "chat_template.jinja").read_text(encoding="utf-8"),
    )
    fast.save_pretrained(folder)
