"""A request, what it asks of the sampler, and what comes back: plain values of token ids.

Knows nothing about text, scheduling or the model. Stop strings are text and are matched above.
"""

import math
import struct
from dataclasses import dataclass
from typing import Literal, NoReturn

from beam_trt.errors import RequestError

FinishReason = Literal["stop", "length", "cancelled", "error"]
MAX_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request's tokens are chosen and when it ends. Raises RequestError naming field,
    range and value.

    temperature 0 is greedy; otherwise logits are divided by it in FP32, then `top_k` and `top_p`
    (the smallest set of most likely tokens whose probability reaches it) cut, in that order. The
    same `seed` gives the same tokens in any batch; None draws one when the request is submitted.
    A token of `stop_token_ids`, or an end-of-sequence token of the model unless `ignore_eos`, ends
    the request and is its last token; none of them is chosen before `min_tokens` tokens exist.
    `logprobs` asks for each token's log-probability under the unmodified FP32 logits.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: bool = False

    def __post_init__(self) -> None:
        _check_int("max_tokens", self.max_tokens, low=1)
        _check_int("min_tokens", self.min_tokens, low=0, high=self.max_tokens)
        _check_temperature(self.temperature)
        if self.top_k is not None:
            _check_int("top_k", self.top_k, low=1)
        if not _is_number(self.top_p) or not 0.0 < self.top_p <= 1.0:
            _refuse("top_p", "a number above 0 and at most 1 (1 = off)", self.top_p)
        if self.seed is not None:
            _check_int("seed", self.seed, low=0, high=MAX_SEED)
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, low=0)

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to continue. `request_id` is unique among the open requests of one executor or
    client."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams

    def __post_init__(self) -> None:
        for at, token_id in enumerate(self.prompt_ids):
            if type(token_id) is not int:
                _refuse(f"prompt: token id at index {at}", "an integer", token_id)

    @property
    def max_num_tokens(self) -> int:
        """Tokens of the sequence when nothing stops it early."""
        return len(self.prompt_ids) + self.sampling.max_tokens


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts so far; `reused_tokens` of the prompt came from cached KV."""

    prompt_tokens: int
    generated_tokens: int
    reused_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall-clock nanoseconds (`time.time_ns`) of a request's milestones, None until reached."""

    arrival: int
    first_scheduled: int | None = None
    first_token: int | None = None
    last_token: int | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step did for one request. `token_ids` (and `logprobs`, nats, when asked for) are new
    since the previous output. The output with a `finish_reason` is the last: "stop" with the
    `stop_token_id`, "length", "cancelled", or "error" with a message in `error`. `seed` is the one
    that was used, on the last output of a request that sampled."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish_reason: FinishReason | None
    stop_token_id: int | None
    error: str | None
    usage: Usage
    timings: Timings
    seed: int | None = None

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What any single request on an engine may ask for. `max_cached_tokens`: tokens the whole KV
    cache can hold for one request that has it to itself."""

    vocab_size: int
    max_seq_len: int
    max_cached_tokens: int

    def check(self, request: Request) -> None:
        """Raise RequestError, saying the limit and what to do, where `request` can never run."""
        prompt, tokens = request.prompt_ids, request.sampling.max_tokens
        if not prompt:
            raise RequestError("prompt: it has no tokens. Send at least one token.")
        self._check_ids("prompt", prompt)
        self._check_ids("stop_token_ids", request.sampling.stop_token_ids)
        if len(prompt) >= self.max_seq_len:
            raise RequestError(
                f"prompt: {len(prompt)} tokens, longer than the limit: max_seq_len "
                f"{self.max_seq_len} leaves at most {self.max_seq_len - 1} for a prompt. Shorten "
                "the prompt, or build the engine with a larger max_seq_len."
            )
        if request.max_num_tokens > self.max_seq_len:
            raise RequestError(
                f"max_tokens: {tokens} after a prompt of {len(prompt)} tokens is "
                f"{request.max_num_tokens} tokens, over the limit max_seq_len {self.max_seq_len}. "
                f"Ask for at most {self.max_seq_len - len(prompt)} tokens, or shorten the prompt."
            )
        if request.max_num_tokens - 1 > self.max_cached_tokens:
            raise RequestError(
                f"max_tokens: prompt and output need {request.max_num_tokens - 1} tokens of KV "
                f"cache, which holds {self.max_cached_tokens}. Ask for fewer tokens, or start "
                "the engine with a larger KV cache."
            )

    def _check_ids(self, field: str, ids: tuple[int, ...]) -> None:
        if not ids or (min(ids) >= 0 and max(ids) < self.vocab_size):
            return
        at, token_id = next(
            (at, token_id) for at, token_id in enumerate(ids) if not 0 <= token_id < self.vocab_size
        )
        raise RequestError(
            f"{field}: token id {token_id} at index {at} is outside the vocabulary, "
            f"expected 0..{self.vocab_size - 1}. Tokenize with this model's tokenizer."
        )


def _check_temperature(value: float) -> None:
    wanted = "0 (greedy) or a positive number that FP32 can represent"
    if not _is_number(value):
        _refuse("temperature", wanted, value)
    try:
        as_fp32 = struct.unpack("<f", struct.pack("<f", value))[0]
    except (OverflowError, struct.error):
        _refuse("temperature", wanted, value)
    if not math.isfinite(as_fp32) or as_fp32 < 0 or (value != 0 and as_fp32 == 0):
        _refuse("temperature", wanted, value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_int(field: str, value: object, low: int, high: int | None = None) -> None:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not is_int or value < low or (high is not None and value > high):  # type: ignore[operator]
        wanted = f"at least {low}" if high is None else f"within {low}..{high}"
        _refuse(field, f"an integer {wanted}", value)


def _refuse(field: str, wanted: str, value: object) -> NoReturn:
    raise RequestError(f"{field}: expected {wanted}, got {value!r}.")
