"""Packs dialogues and prose into rows of one length; one uint16 a token carries the token and what
the loss needs to know about it.

Bits 0-10 token id, bit 11 written by the model, bit 12 first of a document, bit 13 prose, bit 14
padding.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from .dialogues.compose import dialogue
from .rendering import Renderer, written_by_model

ROW_LENGTH = 1024
WRITTEN, FIRST, PROSE, PADDING = 1 << 11, 1 << 12, 1 << 13, 1 << 14
TOKEN_MASK = (1 << 11) - 1
_PROSE_SHARE = 0.04  # of documents
_PROSE_LENGTH = 448
_OPEN_ROWS = 16


def encoded(tokenizer: Tokenizer, text: str) -> npt.NDArray[Any]:
    """A rendered dialogue as [num_tokens] uint16 with its bits set."""
    ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.uint16)
    user, assistant = tokenizer.token_to_id("user"), tokenizer.token_to_id("assistant")
    assert user is not None, "the role user must be one token"
    assert assistant is not None, "the role assistant must be one token"
    written = written_by_model(ids, user, assistant)
    marked: npt.NDArray[Any] = np.where(written, ids | np.uint16(WRITTEN), ids).astype(np.uint16)
    marked[0] |= FIRST
    return marked


class DocumentSource:
    """An endless, seeded stream of encoded documents of the training side of the split."""

    def __init__(self, tokenizer: Tokenizer, prose: npt.NDArray[Any], seed: int) -> None:
        """prose: [num_tokens] uint16, documents separated by <|endoftext|>."""
        self._tokenizer, self._prose = tokenizer, prose
        self._rng = Random(seed)
        self._renderer = Renderer()

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        while True:
            yield self._prose_piece() if self._rng.random() < _PROSE_SHARE else self._dialogue()

    def _dialogue(self) -> npt.NDArray[Any]:
        return encoded(self._tokenizer, self._renderer.text(dialogue(self._rng)))

    def _prose_piece(self) -> npt.NDArray[Any]:
        begin = self._rng.randrange(len(self._prose) - _PROSE_LENGTH)
        piece = self._prose[begin : begin + _PROSE_LENGTH] | np.uint16(PROSE)
        piece[0] |= FIRST
        return piece


def rows(source: Iterator[npt.NDArray[Any]], count: int) -> npt.NDArray[Any]:
    """Pack documents into `count` rows, [count, 1024] uint16; each goes where it fits tightest.
    Documents longer than a row are skipped."""
    done: list[npt.NDArray[Any]] = []
    opened: list[list[npt.NDArray[Any]]] = [[] for _ in range(_OPEN_ROWS)]
    free = [ROW_LENGTH] * _OPEN_ROWS
    while len(done) < count:
        document = next(source)
        if len(document) > ROW_LENGTH:
            continue
        fits = [i for i in range(_OPEN_ROWS) if free[i] >= len(document)]
        if not fits:
            fullest = min(range(_OPEN_ROWS), key=lambda i: free[i])
            done.append(_padded(opened[fullest]))
            opened[fullest], free[fullest] = [], ROW_LENGTH
            fits = [fullest]
        tightest = min(fits, key=lambda i: free[i])
        opened[tightest].append(document)
        free[tightest] -= len(document)
    return np.stack(done)


def _padded(documents: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    row: npt.NDArray[Any] = np.concatenate(documents)
    missing = ROW_LENGTH - len(row)
    if missing:
        padding = np.full(missing, PADDING, dtype=np.uint16)
        padding[0] |= FIRST
        row = np.concatenate((row, padding))
    return row
