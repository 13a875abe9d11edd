"""Answers in this process, without a server: an engine, its tokenizer and its chat format."""

import itertools
import queue
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from beam_trt.config.runtime import RuntimeConfig
from beam_trt.engine.manifest import EngineConfig
from beam_trt.errors import ServerError
from beam_trt.runtime.local import open_executor
from beam_trt.runtime.request import RequestOutput
from beam_trt.serving.answer import Answer, AnswerBuilder, GenerateRequest, Piece
from beam_trt.serving.chat import ChatFormat
from beam_trt.serving.text import Tokenizer


class LocalEngine:
    """An open engine with the interface of the clients. Use as a context manager. Errors of
    opening as `runtime.local.open_executor`, and EngineError where there is no tokenizer."""

    def __init__(self, engine_dir: Path, runtime: RuntimeConfig | None = None) -> None:
        self._tokenizer = Tokenizer(EngineConfig.load(engine_dir).tokenizer_dir)
        self._chat = ChatFormat(self._tokenizer)
        self._ids = itertools.count()
        self._open = ExitStack()
        self._executor = self._open.enter_context(open_executor(engine_dir, runtime))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._open.close()

    def generate(self, request: GenerateRequest) -> Answer:
        """The whole answer. Raises RequestError and ServerError."""
        return Answer.join(self.stream(request))

    def stream(self, request: GenerateRequest) -> Iterator[Piece]:
        """Pieces of the answer as they come, the last with an ending. Closing the iterator cancels
        the request. Raises RequestError where it can never run, ServerError where the engine
        fails."""
        answer = AnswerBuilder(request, self._tokenizer, self._chat)
        request_id = f"local-{next(self._ids)}"
        outputs: queue.SimpleQueue[RequestOutput] = queue.SimpleQueue()
        limits = self._executor.limits
        self._executor.submit(answer.engine_request(request_id, limits.max_seq_len), outputs.put)
        try:
            while not answer.is_complete:
                output = outputs.get()
                if output.finish_reason in ("error", "cancelled"):
                    raise ServerError(output.error or "the engine cancelled the request.")
                answer.add(output)
                if answer.is_complete or answer.has_tokens:
                    yield answer.take(output)
        finally:
            self._executor.cancel(request_id)
