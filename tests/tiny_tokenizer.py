"""beam-tiny's tokenizer and chat format, opened once."""

from functools import cache
from importlib.resources import files
from pathlib import Path

from beam_trt.serving.chat import ChatFormat
from beam_trt.serving.text import Tokenizer


@cache
def tiny_tokenizer() -> Tokenizer:
    return Tokenizer(Path(str(files("beam_trt.assets").joinpath("beam_tiny"))))


@cache
def tiny_chat() -> ChatFormat:
    return ChatFormat(tiny_tokenizer())
