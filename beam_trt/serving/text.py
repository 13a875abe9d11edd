"""Between text and token ids: the engine's tokenizer, and text that grows token by token.

Knows nothing about chats or servers. Beam's tokenizers are byte-level BPE: every token stands for
some bytes, so text is the UTF-8 decoding of their concatenation and can be extended exactly.
"""

import codecs
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from beam_trt.errors import EngineError, RequestError


class Tokenizer:
    """The tokenizer of a checkpoint or of an engine's `tokenizer/` folder. Safe to share between
    threads."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "tokenizer.json").is_file():
            raise EngineError(
                f"{folder}: expected a tokenizer (tokenizer.json, tokenizer_config.json), found "
                f"{'a folder without one' if folder.is_dir() else 'no such folder'}. "
                "Build the engine from a checkpoint that has its tokenizer files."
            )
        # The class itself rather than AutoTokenizer, which imports torch and takes seconds.
        from transformers import PreTrainedTokenizerFast

        self.folder = folder
        try:
            self.hf: Any = PreTrainedTokenizerFast.from_pretrained(folder)
        except Exception as error:  # tokenizers raises a bare Exception
            raise EngineError(
                f"{folder}: its tokenizer files cannot be read: {error}. "
                "Copy them again from the checkpoint, or build the engine again."
            ) from error
        self._backend: Any = self.hf.backend_tokenizer
        kind = type(self._backend.decoder).__name__
        if kind != "ByteLevel":
            raise EngineError(
                f"{folder}/tokenizer.json: expected a byte-level decoder, found {kind}: "
                "Beam's tokenizers are byte-level BPE. Use the files of a Beam checkpoint."
            )
        added = self._backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)

    def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of `text`; `add_special_tokens` as the tokenizer's own post-processor does it.

        Not through transformers' wrapper, which reconfigures the shared backend at each call.
        """
        return tuple(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`, equal to what IncrementalDetokenizer gives piece by piece."""
        detokenizer = IncrementalDetokenizer(self, skip_special_tokens=skip_special_tokens)
        return "".join(map(detokenizer.feed, token_ids)) + detokenizer.finish()

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes one token stands for; none for ids that only pad the model's vocabulary."""
        known = self._bytes_of.get(token_id)
        if known is None:
            known = self._bytes_of[token_id] = _to_bytes(self._backend.id_to_token(token_id) or "")
        return known

    @cached_property
    def _bytes_of(self) -> dict[int, bytes]:
        return {}


class IncrementalDetokenizer:
    """Text of a growing sequence of tokens, released as soon as it is certain: whole characters
    only, and nothing that a stop string could still take back.

    Bytes that are no UTF-8 become U+FFFD exactly as the tokenizer's own decode does it. A stop
    string ends the text before itself, wherever token boundaries fall; of several, the one that is
    complete first (then the longest) is named by `stopped_by`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop_strings: Iterable[str] = (),
        skip_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = tuple(stop_strings)
        if "" in self._stops:
            raise RequestError("stop: expected non-empty strings, got ''.")
        self._held = ""
        self.stopped_by: str | None = None

    def feed(self, token_id: int) -> str:
        """Text released by one more token; nothing more once `stopped_by` is set."""
        if self.stopped_by is not None or token_id in self._hidden:
            return ""
        return self._release(self._decoder.decode(self._tokenizer.token_bytes(token_id)))

    def finish(self) -> str:
        """The rest: what was held back, with an unfinished character as U+FFFD."""
        if self.stopped_by is not None:
            return ""
        text = self._release(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return text + held

    def _release(self, text: str) -> str:
        if not self._stops:
            return text
        self._held += text
        match = self._first_stop()
        if match is not None:
            start, self.stopped_by = match
            released, self._held = self._held[:start], ""
            return released
        keep = max(_overlap(self._held, stop) for stop in self._stops)
        cut = len(self._held) - keep
        released, self._held = self._held[:cut], self._held[cut:]
        return released

    def _first_stop(self) -> tuple[int, str] | None:
        found = [(self._held.find(stop), stop) for stop in self._stops]
        ends = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if not ends:
            return None
        _, start, stop = min(ends)
        return start, stop


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 stands for itself, the other bytes
    for the characters from U+0100 on, in order (GPT-2's `bytes_to_unicode`, inverted)."""
    printable = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
    others = (byte for byte in range(256) if byte not in printable)
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _to_bytes(token: str) -> bytes:
    # A token with a character outside the alphabet is an added token, written as plain text.
    if all(char in _BYTE_OF for char in token):
        return bytes(_BYTE_OF[char] for char in token)
    return token.encode()
