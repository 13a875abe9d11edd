"""One request from submission to its last output: its tokens, its milestones, when it ends.

Knows nothing about scheduling or blocks.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from beam_trt.runtime.request import FinishReason, Request, RequestOutput, Timings, Usage
from beam_trt.runtime.session import SampledToken, SamplingRow

Sink = Callable[[RequestOutput], None]

_NOT_FINITE = (
    "the model's logits for this request are not finite (NaN or infinity). Check the engine with "
    "`beam-trt verify`."
)


@dataclass(slots=True)
class OpenRequest:
    """`token_ids` are the prompt and what was generated; `stop_ids` end the request. The seed is
    drawn here when the request has none, so that the tokens can be had again."""

    request: Request
    sink: Sink
    eos_token_ids: tuple[int, ...]
    arrival: int
    first_scheduled: int | None = None
    first_token: int | None = None
    last_token: int | None = None
    token_ids: list[int] = field(init=False)
    stop_ids: tuple[int, ...] = field(init=False)
    seed: int = field(init=False)

    def __post_init__(self) -> None:
        sampling = self.request.sampling
        self.token_ids = list(self.request.prompt_ids)
        eos = () if sampling.ignore_eos else self.eos_token_ids
        self.stop_ids = tuple(dict.fromkeys((*sampling.stop_token_ids, *eos)))
        self.seed = secrets.randbits(64) if sampling.seed is None else sampling.seed

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - len(self.request.prompt_ids)

    def sampling_row(self) -> SamplingRow:
        """How the next token is to be sampled."""
        sampling = self.request.sampling
        banned = self.stop_ids if self.num_generated < sampling.min_tokens else ()
        return SamplingRow(sampling, self.seed, len(self.token_ids), banned)

    def advance(self, sampled: SampledToken, now: int) -> RequestOutput:
        """Take the sampled token at `now` (time_ns) and say what came of it."""
        if sampled.token_id is None:
            return self.end("error", _NOT_FINITE)
        token_id = sampled.token_id
        self.token_ids.append(token_id)
        self.first_token = self.first_token or now
        self.last_token = now
        logprobs = None
        if self.request.sampling.logprobs:
            assert sampled.logprob is not None, self.request.request_id
            logprobs = (sampled.logprob,)
        reason: FinishReason | None = None
        if token_id in self.stop_ids:
            reason = "stop"
        elif self.num_generated == self.request.sampling.max_tokens:
            reason = "length"
        return self._output((token_id,), logprobs, reason)

    def end(self, reason: FinishReason, error: str | None = None) -> RequestOutput:
        """The last output of a request that ends for a reason outside its tokens."""
        return self._output((), () if self.request.sampling.logprobs else None, reason, error)

    def _output(
        self,
        token_ids: tuple[int, ...],
        logprobs: tuple[float, ...] | None,
        reason: FinishReason | None,
        error: str | None = None,
    ) -> RequestOutput:
        sampled = reason is not None and not self.request.sampling.is_greedy
        return RequestOutput(
            request_id=self.request.request_id,
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=reason,
            stop_token_id=token_ids[0] if reason == "stop" else None,
            error=error,
            usage=Usage(len(self.request.prompt_ids), self.num_generated),
            timings=Timings(self.arrival, self.first_scheduled, self.first_token, self.last_token),
            seed=self.seed if sampled else None,
        )
