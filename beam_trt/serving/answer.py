"""One request for text and its answer, the same for every way it travels: in process, through
Triton, or as its clients see it.

Pure: knows no server, no socket and no thread.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from beam_trt.errors import RequestError
from beam_trt.runtime.request import Request, RequestOutput, SamplingParams, Timings, Usage
from beam_trt.serving.chat import ChatFormat, ChatRequest, ChatStream
from beam_trt.serving.text import IncrementalDetokenizer, Tokenizer


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A prompt, as exactly one of `text`, `input_ids` and `chat`, and how to continue it.

    `stop_strings` end the text before themselves. `skip_special_tokens` None hides them in plain
    text and keeps them in a chat, whose parser needs them. `fit_max_tokens`: nobody chose
    sampling.max_tokens, so it shrinks to what fits after the prompt. Raises RequestError.
    """

    text: str | None = None
    input_ids: tuple[int, ...] | None = None
    chat: ChatRequest | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_strings: tuple[str, ...] = ()
    skip_special_tokens: bool | None = None
    fit_max_tokens: bool = False

    def __post_init__(self) -> None:
        prompts = {"text_input": self.text, "input_ids": self.input_ids, "messages": self.chat}
        given = [name for name, value in prompts.items() if value is not None]
        if len(given) != 1:
            found = " and ".join(given) if given else "none of them"
            raise RequestError(
                "prompt: expected exactly one of text_input (text), input_ids (token ids) and "
                f"messages (a chat as JSON), got {found}."
            )
        if self.text == "":
            raise RequestError("text_input: expected at least one character, got an empty string.")
        if "" in self.stop_strings:
            raise RequestError("stop: expected non-empty strings, got ''.")
        if self.chat is not None and self.skip_special_tokens:
            raise RequestError(
                "skip_special_tokens: a chat's answer is parsed by its special tokens, got True. "
                "Leave it out and read the content."
            )

    @property
    def hides_special_tokens(self) -> bool:
        if self.skip_special_tokens is None:
            return self.chat is None
        return self.skip_special_tokens


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine gets it and as a reader sees it."""

    token_ids: tuple[int, ...]
    text: str

    @classmethod
    def of(cls, request: GenerateRequest, tokenizer: Tokenizer, chat: ChatFormat) -> "Prompt":
        """Render and tokenize whatever kind of prompt was given. Raises RequestError where the
        chat template refuses it."""
        if request.chat is not None:
            text = chat.render(request.chat)
            return cls(tokenizer.encode(text, add_special_tokens=False), text)
        if request.text is not None:
            return cls(tokenizer.encode(request.text), request.text)
        assert request.input_ids is not None, request
        # Ids outside the vocabulary are the engine's to refuse; here they must only not fail.
        known = [token_id for token_id in request.input_ids if 0 <= token_id < 2**31]
        return cls(request.input_ids, tokenizer.decode(known, skip_special_tokens=False))


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer ended: `finish_reason` "stop" or "length"; `stop_reason` the stop string, or
    the stop token's id as text, or "". `cumulative_logprob`: sum over the tokens, nats. What was
    not asked for or not sent is None."""

    finish_reason: str
    stop_reason: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()
    cumulative_logprob: float | None = None
    usage: Usage | None = None
    timings: Timings | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """What is new in an answer. `text` is as generated; of a chat also the new `reasoning` and
    `content`. `token_ids` and `logprobs` are those of the new tokens, the stop token included.
    The last piece has an `ending`."""

    text: str = ""
    reasoning: str = ""
    content: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, or as much as came (`ending` None)."""

    text: str
    reasoning: str
    content: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ending: Ending | None

    @classmethod
    def join(cls, pieces: Iterable[Piece]) -> "Answer":
        """The pieces as one."""
        parts = list(pieces)
        return cls(
            text="".join(piece.text for piece in parts),
            reasoning="".join(piece.reasoning for piece in parts),
            content="".join(piece.content for piece in parts),
            token_ids=tuple(i for piece in parts for i in piece.token_ids),
            logprobs=tuple(p for piece in parts for p in piece.logprobs),
            ending=parts[-1].ending if parts else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """{text, token_ids, finish_reason, reasoning, tool_calls, usage, timings} and stop_reason,
        raw_text. `text` is a chat's answer, or all that was generated where its format was not
        followed and nothing could be parsed; `raw_text` is always all of it. timings: nanoseconds
        since the epoch."""
        ending = self.ending or Ending(finish_reason="")
        parsed = self.content or self.reasoning or ending.tool_calls
        usage, timings = ending.usage, ending.timings
        return {
            "text": self.content if parsed else self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": ending.finish_reason or None,
            "stop_reason": ending.stop_reason or None,
            "reasoning": self.reasoning or None,
            "tool_calls": list(ending.tool_calls),
            "raw_text": self.text,
            "usage": usage
            and {
                "prompt_tokens": usage.prompt_tokens,
                "generated_tokens": usage.generated_tokens,
                "reused_tokens": usage.reused_tokens,
            },
            "timings": timings
            and {
                "arrival_ns": timings.arrival,
                "first_scheduled_ns": timings.first_scheduled,
                "first_token_ns": timings.first_token,
                "last_token_ns": timings.last_token,
            },
        }


class AnswerBuilder:
    """Grows an answer from the engine's outputs.

    A stop string is found here, token by token, however many tokens an output brings; then
    `stopped_early` tells the caller to cancel the request in the engine.
    """

    def __init__(self, request: GenerateRequest, tokenizer: Tokenizer, chat: ChatFormat) -> None:
        self.prompt = Prompt.of(request, tokenizer, chat)
        self._request = request
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            stop_strings=request.stop_strings,
            skip_special_tokens=request.hides_special_tokens,
        )
        self._parser: ChatStream | None = None
        if request.chat is not None:
            self._parser = chat.stream(self.prompt.text, request.chat.tools)
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._num_tokens = 0
        self._sum_logprobs = 0.0
        self._finish_reason: str | None = None
        self._stop_reason = ""
        self.stopped_early = False

    @property
    def is_complete(self) -> bool:
        return self._finish_reason is not None

    @property
    def has_text(self) -> bool:
        """Whether text waits for `take`."""
        return bool(self._text)

    @property
    def has_tokens(self) -> bool:
        """Whether tokens wait for `take`, with or without text."""
        return bool(self._token_ids)

    def engine_request(self, request_id: str, max_seq_len: int) -> Request:
        """What the engine is to do; `max_seq_len` is its limit of prompt and output together."""
        sampling = self._request.sampling
        room = max_seq_len - len(self.prompt.token_ids)
        if self._request.fit_max_tokens and 0 < room < sampling.max_tokens:
            min_tokens = min(sampling.min_tokens, room)
            sampling = replace(sampling, max_tokens=room, min_tokens=min_tokens)
        return Request(request_id, self.prompt.token_ids, sampling)

    def add(self, output: RequestOutput) -> None:
        """One output of the engine, not a cancelled or failed one. Ignored once complete."""
        stop_at = len(output.token_ids) - 1 if output.stop_token_id is not None else None
        for at, token_id in enumerate(output.token_ids):
            if self.is_complete:
                return
            self._token_ids.append(token_id)
            self._num_tokens += 1
            if output.logprobs is not None:
                self._logprobs.append(output.logprobs[at])
                self._sum_logprobs += output.logprobs[at]
            if at != stop_at:  # the token that ends the request is no text
                self._text += self._detokenizer.feed(token_id)
            self._note_stop_string(is_last=output.is_last)
        if output.is_last and not self.is_complete:
            self._text += self._detokenizer.finish()
            self._note_stop_string(is_last=True)
        if output.is_last and not self.is_complete:
            self._finish_reason = output.finish_reason
            if output.stop_token_id is not None:
                self._stop_reason = str(output.stop_token_id)

    def take(self, latest: RequestOutput) -> Piece:
        """Everything added since the last `take`, with the ending when complete; `latest` is the
        output added last, for its counts and times."""
        reasoning = content = ""
        if self._parser is not None:
            delta = self._parser.feed(self._text)
            reasoning, content = delta.reasoning, delta.content
            if self.is_complete:
                rest = self._parser.finish()
                reasoning, content = reasoning + rest.reasoning, content + rest.content
        piece = Piece(
            text=self._text,
            reasoning=reasoning,
            content=content,
            token_ids=tuple(self._token_ids),
            logprobs=tuple(self._logprobs),
            ending=self._ending(latest) if self.is_complete else None,
        )
        self._text = ""
        self._token_ids.clear()
        self._logprobs.clear()
        return piece

    def _note_stop_string(self, is_last: bool) -> None:
        if self._detokenizer.stopped_by is not None:
            self._finish_reason = "stop"
            self._stop_reason = self._detokenizer.stopped_by
            self.stopped_early = not is_last

    def _ending(self, latest: RequestOutput) -> Ending:
        assert self._finish_reason is not None
        usage = latest.usage
        return Ending(
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
            tool_calls=self._parser.message.tool_calls if self._parser else (),
            cumulative_logprob=self._sum_logprobs if self._request.sampling.logprobs else None,
            usage=Usage(usage.prompt_tokens, self._num_tokens, usage.reused_tokens),
            timings=latest.timings,
        )
