"""Text that grows token by token equals transformers' decode of the whole."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizer import tiny_tokenizer

from beam_trt.errors import EngineError, RequestError
from beam_trt.serving.text import IncrementalDetokenizer, Tokenizer

VOCAB = 2048
NUM_SPECIAL = 8
BYTES = range(NUM_SPECIAL, NUM_SPECIAL + 256)  # one token for each single byte
WORDS = "Grüße, 世界! \U0001f680 don't   stop\n\n\tnaïve \u0301 \U0001f469\u200d\U0001f680 end"


def pieces_of(token_ids: list[int], **options: object) -> tuple[list[str], IncrementalDetokenizer]:
    detokenizer = IncrementalDetokenizer(tiny_tokenizer(), **options)  # type: ignore[arg-type]
    pieces = [detokenizer.feed(token_id) for token_id in token_ids]
    return [*pieces, detokenizer.finish()], detokenizer


@settings(deadline=None)
@given(
    # Single bytes are mostly broken UTF-8, words are whole, special tokens lie between.
    st.lists(st.one_of(st.sampled_from(BYTES), st.integers(0, VOCAB - 1)), max_size=60),
    st.booleans(),
)
def test_pieces_join_to_what_transformers_decodes(token_ids: list[int], skip: bool) -> None:
    pieces, _ = pieces_of(token_ids, skip_special_tokens=skip)
    whole = tiny_tokenizer().hf.decode(token_ids, skip_special_tokens=skip)
    assert "".join(pieces) == whole
    assert tiny_tokenizer().decode(token_ids, skip_special_tokens=skip) == whole


@settings(deadline=None)
@given(st.text(max_size=60))
def test_valid_text_never_shows_half_a_character(text: str) -> None:
    token_ids = list(text.encode())
    by_byte = {tiny_tokenizer().token_bytes(i): i for i in BYTES}
    pieces, _ = pieces_of([by_byte[bytes([byte])] for byte in token_ids])
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


def test_encode_equals_transformers() -> None:
    tokenizer = tiny_tokenizer()
    text = f"<|start|>user<|message|>{WORDS}<|end|>"
    assert list(tokenizer.encode(text)) == tokenizer.hf(text)["input_ids"]
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
    assert tokenizer.decode(tokenizer.encode(text)) == f"user{WORDS}"


def test_ids_that_only_pad_the_vocabulary_have_no_text() -> None:
    pieces, _ = pieces_of([VOCAB + 7, 10**9])
    assert "".join(pieces) == ""


@settings(deadline=None)
@given(st.data())
def test_stop_string_cuts_at_the_same_place_however_tokens_fall(data: st.DataObject) -> None:
    text = data.draw(st.text("ab<|é世", max_size=30))
    stops = data.draw(st.lists(st.text("ab<|é世", min_size=1, max_size=5), min_size=1, max_size=3))
    by_byte = {tiny_tokenizer().token_bytes(i): i for i in BYTES}
    by_bytes = [by_byte[bytes([byte])] for byte in text.encode()]
    by_words = list(tiny_tokenizer().encode(text, add_special_tokens=False))

    # The first stop to be complete wins, found here by looking at every beginning of the text.
    expected, by = text, None
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            by = max(ended, key=len)
            expected = text[: end - len(by)]
            break
    for token_ids in (by_bytes, by_words):
        pieces, detokenizer = pieces_of(token_ids, stop_strings=stops)
        assert "".join(pieces) == expected, (token_ids, stops)
        assert detokenizer.stopped_by == by


def test_text_is_held_only_while_a_stop_string_is_possible() -> None:
    by_byte = {tiny_tokenizer().token_bytes(i): i for i in BYTES}
    pieces, _ = pieces_of([by_byte[c.encode()] for c in "xENyEND"], stop_strings=("END",))
    assert pieces == ["x", "", "", "ENy", "", "", "", ""]


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match=r"stop: expected non-empty strings, got ''"):
        IncrementalDetokenizer(tiny_tokenizer(), stop_strings=("x", ""))


def test_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"expected a tokenizer .* found a folder without one"):
        Tokenizer(tmp_path)
    with pytest.raises(EngineError, match="no such folder"):
        Tokenizer(tmp_path / "nowhere")


def test_tokenizer_that_is_not_byte_level(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    backend = Backend(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(EngineError, match="expected a byte-level decoder, found WordPiece"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", "{}x"),
        ("tokenizer.json", '{"model": 3}'),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[]"),
    ],
)
def test_damaged_tokenizer_files(tmp_path: Path, beam_tiny: Path, name: str, text: str) -> None:
    for kept in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(beam_tiny / kept, tmp_path / kept)
    (tmp_path / name).write_text(text)
    with pytest.raises(EngineError, match=r"cannot be read: .* Copy them again"):
        Tokenizer(tmp_path)
