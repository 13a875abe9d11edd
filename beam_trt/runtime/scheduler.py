"""Which tokens of which requests the next step computes: capacity first, then the micro-batch.

Integers only: no tensors, no clock, no token ids. First come, first served, and nothing is ever
evicted: a request is admitted when its whole worst case fits beside those of the admitted ones.
"""

from collections import OrderedDict
from dataclasses import dataclass

from beam_trt.runtime.kv_cache import KvCacheManager


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """Tokens `start` to `start + num_tokens` of one request's sequence enter the KV cache. The
    last one's logits give a new token where `samples`."""

    request_id: str
    start: int
    num_tokens: int
    samples: bool
    is_context: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: generation requests first, then context chunks in order of arrival. `admitted` are
    the requests that left the queue for it."""

    requests: tuple[ScheduledRequest, ...]
    admitted: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.requests

    @property
    def num_tokens(self) -> int:
        return sum(scheduled.num_tokens for scheduled in self.requests)

    @property
    def num_context_tokens(self) -> int:
        return sum(scheduled.num_tokens for scheduled in self.requests if scheduled.is_context)


@dataclass(slots=True)
class _Sequence:
    """`num_tokens` are known (prompt and generated), `num_cached` of them are in the KV cache.
    `max_cached` is its worst case: all but the last generated token, which nobody reads."""

    request_id: str
    num_prompt: int
    max_cached: int
    num_tokens: int
    num_cached: int = 0

    @property
    def is_context(self) -> bool:
        return self.num_cached < self.num_prompt


class Scheduler:
    """Holds every open request from arrival to end, waiting or running.

    No request starves: the head of the queue is admitted as soon as enough running requests ended,
    each of which goes on by at least one token in every step that has budget left for it, and a
    step has budget for every generating request and one context token since
    `max_num_tokens >= max_batch_size`.
    """

    def __init__(self, kv_cache: KvCacheManager, max_batch_size: int, max_num_tokens: int) -> None:
        assert max_num_tokens >= max_batch_size, f"{max_num_tokens=} {max_batch_size=}"
        self.kv_cache = kv_cache
        self._max_batch_size = max_batch_size
        self._max_num_tokens = max_num_tokens
        self._waiting: OrderedDict[str, _Sequence] = OrderedDict()
        self._running: dict[str, _Sequence] = {}

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def running(self) -> tuple[str, ...]:
        """Ids of the admitted requests, in order of arrival."""
        return tuple(self._running)

    def add(self, request_id: str, num_prompt: int, max_tokens: int) -> None:
        """Queue a request of `num_prompt` tokens that generates at most `max_tokens` more. The
        caller has made sure that it can fit (`KvCacheManager.can_ever_fit`)."""
        assert request_id not in self._waiting, request_id
        assert request_id not in self._running, request_id
        max_cached = num_prompt + max_tokens - 1
        assert self.kv_cache.can_ever_fit(max_cached), f"{request_id}: {max_cached=}"
        self._waiting[request_id] = _Sequence(request_id, num_prompt, max_cached, num_prompt)

    def remove(self, request_id: str) -> None:
        """The request ended, in whatever state it is: free everything it holds."""
        if self._waiting.pop(request_id, None) is None:
            del self._running[request_id]
            self.kv_cache.release(request_id)

    def schedule(self) -> StepPlan:
        """Admit what fits, then choose the next step's tokens and take their blocks."""
        admitted = self._admit()
        budget = self._max_num_tokens
        generation: list[ScheduledRequest] = []
        context: list[_Sequence] = []
        for sequence in self._running.values():
            if sequence.is_context:
                context.append(sequence)
            else:
                generation.append(self._take(sequence, budget))
                budget -= generation[-1].num_tokens
        chunks: list[ScheduledRequest] = []
        for sequence in context:
            if not budget:
                break
            chunks.append(self._take(sequence, budget))
            budget -= chunks[-1].num_tokens
        return StepPlan((*generation, *chunks), admitted)

    def complete(self, plan: StepPlan) -> None:
        """The step ran: its tokens are in the cache, blocks behind the window are free again."""
        for scheduled in plan.requests:
            sequence = self._running[scheduled.request_id]
            sequence.num_cached += scheduled.num_tokens
            self.kv_cache.trim(sequence.request_id, sequence.num_cached)

    def append_token(self, request_id: str) -> None:
        """A sampled token became part of the request's sequence; the next step computes it."""
        sequence = self._running[request_id]
        sequence.num_tokens += 1
        assert sequence.num_tokens <= sequence.max_cached, f"{request_id}: {sequence}"

    def _admit(self) -> tuple[str, ...]:
        admitted = []
        while self._waiting and len(self._running) < self._max_batch_size:
            sequence = next(iter(self._waiting.values()))
            if not self.kv_cache.can_admit(sequence.max_cached):
                break
            self.kv_cache.admit(sequence.request_id, sequence.max_cached)
            self._running[sequence.request_id] = sequence
            del self._waiting[sequence.request_id]
            admitted.append(sequence.request_id)
        return tuple(admitted)

    def _take(self, sequence: _Sequence, budget: int) -> ScheduledRequest:
        pending = sequence.num_tokens - sequence.num_cached
        num_tokens = min(pending, budget)
        if num_tokens > 1:  # one is always possible
            most = self.kv_cache.most_tokens(sequence.request_id, sequence.num_cached)
            num_tokens = min(num_tokens, most)
        assert num_tokens > 0, f"{sequence}: {pending=} {budget=}"
        self.kv_cache.extend(sequence.request_id, sequence.num_cached + num_tokens)
        return ScheduledRequest(
            sequence.request_id,
            start=sequence.num_cached,
            num_tokens=num_tokens,
            samples=num_tokens == pending,
            is_context=sequence.is_context,
        )
