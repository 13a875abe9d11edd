"""What an executor says about itself: one record a step, and whether its loop is alive."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class IterationStats:
    """State after step `iteration` (0 before the first). Counts are of requests, tokens and KV
    blocks; `step_us` and its parts are microseconds of the last step: `schedule_us` until the
    plan and its input are ready, `session_us` the model and the sampler, `advance_us` the outputs.
    `total_` counts run since the start."""

    iteration: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_context_tokens: int = 0
    num_generation_tokens: int = 0
    full_blocks_used: int = 0
    full_blocks_free: int = 0
    sliding_blocks_used: int = 0
    sliding_blocks_free: int = 0
    schedule_us: int = 0
    session_us: int = 0
    advance_us: int = 0
    total_finished: int = 0
    total_cancelled: int = 0
    total_failed: int = 0
    total_prompt_tokens: int = 0
    total_generated_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_context_tokens + self.num_generation_tokens

    @property
    def step_us(self) -> int:
        return self.schedule_us + self.session_us + self.advance_us

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, the derived ones included."""
        return asdict(self) | {"num_tokens": self.num_tokens, "step_us": self.step_us}


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the executor can be relied on now. Healthy: its loop is alive, has not failed, and
    either is idle or began its present step less than the stall limit ago."""

    healthy: bool
    idle: bool
    reason: str | None
    seconds_in_step: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
