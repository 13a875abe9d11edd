"""What the executor needs from whatever runs the model: one step in, one token a sampling row out.

No torch here: tests script a session, `model_session` runs the model, `workers` many ranks of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from beam_trt.errors import ServerError
from beam_trt.runtime.request import SamplingParams
from beam_trt.runtime.step_input import StepInput


class RankLost(ServerError):
    """Another rank of the engine is gone; nothing can be computed without it."""


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """How one row of logits becomes a token: the request's parameters, its seed (set even where
    `params.seed` is None), the `position` of the new token in its sequence, and tokens that must
    not be chosen."""

    params: SamplingParams
    seed: int
    position: int
    banned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SampledToken:
    """`token_id` is None where the logits were not finite: that request cannot go on. `logprob`, in
    nats under the unmodified logits, only where asked for."""

    token_id: int | None
    logprob: float | None = None


class Session(Protocol):
    """Runs steps one after another. An exception from any method ends the executor's service:
    every open request is answered with an error."""

    def run(self, step: StepInput, rows: Sequence[SamplingRow]) -> Sequence[SampledToken]:
        """Write the step's tokens to the KV cache and sample one token for each of
        `step.logit_rows`, which `rows` matches in order. `step` is only valid during the call."""
        ...

    def check(self) -> None:
        """Raise when `run` could not work; called now and then while there is nothing to run."""
        ...

    def close(self) -> None:
        """Free everything; safe to call twice."""
        ...
