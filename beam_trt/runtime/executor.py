"""The loop that serves requests: admit, schedule, run the session, hand out tokens.

Requests come from any thread and outputs go to their sinks from the loop's. Knows nothing about
text or tensors; `start` runs the loop in a thread of its own, `step` is one turn of it.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from beam_trt.config.runtime import RuntimeConfig
from beam_trt.engine.manifest import EngineConfig
from beam_trt.errors import BeamTrtError, RequestError, ServerError
from beam_trt.runtime.kv_cache import KvCacheManager
from beam_trt.runtime.open_request import OpenRequest, Sink
from beam_trt.runtime.pool_sizes import PoolSizes
from beam_trt.runtime.request import FinishReason, Request, RequestLimits, RequestOutput
from beam_trt.runtime.scheduler import Scheduler, StepPlan
from beam_trt.runtime.session import SampledToken, Session
from beam_trt.runtime.stats import Health, IterationStats
from beam_trt.runtime.step_input import InputBuffers

IDLE_CHECK_S = 0.25
"""How often an idle loop asks the session whether it still could run."""

STALL_LIMIT_S = 60.0
"""A step that takes longer than this makes the executor unhealthy."""

_logger = logging.getLogger(__name__)


class Executor:
    """Serves requests on one session, many at a time, and owns the session.

    `on_step_end`, when set, is called from the loop after the sinks of a step were. Every submitted
    request gets exactly one output with a `finish_reason`, whatever happens; a sink that raises
    gets no more outputs and its request is cancelled.
    """

    def __init__(
        self,
        session: Session,
        engine: EngineConfig,
        runtime: RuntimeConfig,
    ) -> None:
        model = engine.model
        sizes = PoolSizes.resolve(model, engine.mapping, runtime)
        self.session = session
        self.kv_cache = KvCacheManager(
            sizes.num_full_blocks,
            sizes.num_sliding_blocks,
            runtime.tokens_per_block,
            model.sliding_window,
        )
        self.scheduler = Scheduler(self.kv_cache, runtime.max_batch_size, runtime.max_num_tokens)
        self.input_buffers = InputBuffers(
            runtime.max_batch_size,
            runtime.max_num_tokens,
            runtime.max_seq_len,
            runtime.tokens_per_block,
        )
        self.limits = RequestLimits(
            model.vocab_size, runtime.max_seq_len, self.kv_cache.max_tokens_per_sequence
        )
        self._eos_token_ids = model.eos_token_ids
        self._max_open = runtime.max_batch_size + runtime.max_queued_requests
        self.on_step_end: Callable[[], None] | None = None
        self._wake = threading.Condition()  # guards the five below
        self._open: dict[str, OpenRequest] = {}
        self._new: list[OpenRequest] = []
        self._cancelled: list[str] = []
        self._closing = False
        self._failure: str | None = None
        self._active: dict[str, OpenRequest] = {}  # the loop's own: what the scheduler knows
        self._thread: threading.Thread | None = None
        self._step_began: float | None = None
        self._ended: Counter[FinishReason] = Counter()
        self._stats = IterationStats(
            full_blocks_free=sizes.num_full_blocks, sliding_blocks_free=sizes.num_sliding_blocks
        )

    def submit(self, request: Request, sink: Sink) -> None:
        """Queue a request; `sink` gets its outputs from the loop's thread and must be quick.

        Raises RequestError when it can never run, its id is in use or the queue is full, and
        ServerError when the executor failed or is closed."""
        self.limits.check(request)
        opened = OpenRequest(request, sink, self._eos_token_ids, time.time_ns())
        with self._wake:
            if self._failure is not None or self._closing:
                raise ServerError(self._failure or "the executor is closed; start another.")
            if request.request_id in self._open:
                raise RequestError(
                    f"request {request.request_id!r}: a request with that id is still open. "
                    "Use a new id."
                )
            if len(self._open) >= self._max_open:
                raise RequestError(
                    f"request {request.request_id!r}: the queue is full, {self._max_open} requests "
                    "are open. Try again later, or start the engine with a larger "
                    "max_queued_requests."
                )
            self._open[request.request_id] = opened
            self._new.append(opened)
            self._wake.notify()

    def cancel(self, request_id: str) -> None:
        """End a request before the next step; its blocks are free then. Unknown and ended requests
        are left alone."""
        with self._wake:
            self._cancelled.append(request_id)
            self._wake.notify()

    def start(self) -> None:
        """Run the loop in its own thread until `close` or a failure of the session."""
        assert self._thread is None, "already started"
        self._thread = threading.Thread(target=self._loop, name="executor", daemon=True)
        self._thread.start()

    def step(self) -> list[RequestOutput]:
        """One turn: take new requests and cancellations, run at most one step of the session, and
        hand out what came of it. Not to be called while the loop runs in its own thread."""
        self._step_began = time.monotonic()
        outputs: list[RequestOutput] = []
        try:
            outputs += self._take_changes()
            outputs += self._run_step()
        except Exception as error:  # noqa: BLE001  whatever broke, every request gets an answer
            outputs += self._fail(error, outputs)
        self._deliver(outputs)
        self._step_began = None
        return outputs

    def stats(self) -> IterationStats:
        """The latest step's record, with the queue and the totals as they are now."""
        with self._wake:
            num_open = len(self._open)
        latest = self._stats
        return replace(
            latest,
            num_waiting=max(0, num_open - latest.num_running),
            total_finished=self._ended["stop"] + self._ended["length"],
            total_cancelled=self._ended["cancelled"],
            total_failed=self._ended["error"],
        )

    def health(self) -> Health:
        """Whether requests submitted now would be served; see `Health`."""
        began, reason = self._step_began, self._failure
        in_step = 0.0 if began is None else time.monotonic() - began
        if reason is None and (self._thread is None or not self._thread.is_alive()):
            reason = "the executor's loop is not running"
        elif reason is None and in_step > STALL_LIMIT_S:
            reason = f"the present step has taken {in_step:.0f} s"
        return Health(reason is None, not self._open, reason, in_step)

    @property
    def failure(self) -> str | None:
        """Why the executor stopped serving, None while it serves."""
        return self._failure

    @property
    def num_open(self) -> int:
        """Requests that have not had their last output."""
        return len(self._open)

    def close(self) -> None:
        """Stop the loop, cancel what is open, close the session. Safe to call twice."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        self._deliver(self._end_all("cancelled"))
        self.session.close()

    def check_integrity(self) -> None:
        """Assert the invariants between requests, scheduler and KV cache; between steps only."""
        self.kv_cache.check_integrity()
        running = set(self.scheduler.running)
        for life in (self.kv_cache.full, self.kv_cache.sliding):
            assert life.tables.keys() == running, f"{life.tables.keys()=} {running=}"
        known = self.scheduler.num_running + self.scheduler.num_waiting
        assert known == len(self._active), f"scheduler has {known}, executor {len(self._active)}"
        assert self._active.keys() <= self._open.keys(), (
            f"{self._active.keys() - self._open.keys()}"
        )

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not (self._closing or self._new or self._cancelled or self._active):
                    if not self._wake.wait(IDLE_CHECK_S):
                        break
                if self._closing or self._failure is not None:
                    return
                idle = not (self._new or self._cancelled or self._active)
            try:
                if idle:
                    self.session.check()
                else:
                    self.step()
            except Exception as error:  # noqa: BLE001  see step
                self._deliver(self._fail(error))

    def _take_changes(self) -> list[RequestOutput]:
        with self._wake:
            new, self._new = self._new, []
            cancelled, self._cancelled = self._cancelled, []
        for opened in new:
            request = opened.request
            self._active[request.request_id] = opened
            self.scheduler.add(
                request.request_id, len(request.prompt_ids), request.sampling.max_tokens
            )
        outputs = []
        for request_id in dict.fromkeys(cancelled):
            if opened_now := self._active.get(request_id):
                self._forget(request_id)
                outputs.append(opened_now.end("cancelled"))
        return outputs

    def _run_step(self) -> list[RequestOutput]:
        began = time.perf_counter_ns()
        plan = self.scheduler.schedule()
        if plan.is_empty:
            self._record(plan, (0, 0, 0))
            return []
        now = time.time_ns()
        for request_id in plan.admitted:
            self._active[request_id].first_scheduled = now
        token_ids = {s.request_id: self._active[s.request_id].token_ids for s in plan.requests}
        step = self.input_buffers.fill(plan, token_ids, self.kv_cache)
        sampling = [self._active[s.request_id] for s in plan.requests if s.samples]
        rows = [opened.sampling_row() for opened in sampling]
        filled = time.perf_counter_ns()
        sampled = self.session.run(step, rows)
        ran = time.perf_counter_ns()
        outputs = self._advance(plan, sampling, sampled)
        advanced = time.perf_counter_ns()
        self._record(plan, (filled - began, ran - filled, advanced - ran))
        return outputs

    def _advance(
        self, plan: StepPlan, sampling: list[OpenRequest], sampled: Sequence[SampledToken]
    ) -> list[RequestOutput]:
        now = time.time_ns()
        self.scheduler.complete(plan)
        outputs = []
        for opened, token in zip(sampling, sampled, strict=True):
            output = opened.advance(token, now)
            if output.is_last:
                self._forget(output.request_id)
            else:
                self.scheduler.append_token(output.request_id)
            outputs.append(output)
        return outputs

    def _forget(self, request_id: str) -> None:
        """Free all that the scheduler and the buffers hold for a request."""
        del self._active[request_id]
        self.scheduler.remove(request_id)
        self.input_buffers.release(request_id)

    def _fail(self, error: Exception, pending: Sequence[RequestOutput] = ()) -> list[RequestOutput]:
        """The session broke: end every request whose end is not already `pending`."""
        reason = str(error) if isinstance(error, BeamTrtError) else repr(error)
        _logger.error("the executor stops serving: %s", reason, exc_info=error)
        with self._wake:
            self._failure = f"the engine failed: {reason} Start it again."
        return self._end_all("error", self._failure, pending)

    def _end_all(
        self,
        reason: FinishReason,
        error: str | None = None,
        pending: Sequence[RequestOutput] = (),
    ) -> list[RequestOutput]:
        ending = {output.request_id for output in pending if output.is_last}
        with self._wake:
            self._new = []
            left = [opened for key, opened in self._open.items() if key not in ending]
        self._active.clear()
        return [opened.end(reason, error) for opened in left]

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            request_id = output.request_id
            with self._wake:
                opened = self._open[request_id]
                if output.is_last:
                    del self._open[request_id]
            if output.finish_reason is not None:
                self._ended[output.finish_reason] += 1
            try:
                opened.sink(output)
            except Exception:
                _logger.exception("the sink of request %r raised; it is cancelled", request_id)
                self._abandon(request_id)
        if outputs and self.on_step_end is not None:
            self.on_step_end()

    def _abandon(self, request_id: str) -> None:
        with self._wake:
            self._open.pop(request_id, None)
        if request_id in self._active:
            self._forget(request_id)
            self._ended["cancelled"] += 1

    def _record(self, plan: StepPlan, times_ns: tuple[int, int, int]) -> None:
        before, full, sliding = self._stats, self.kv_cache.full.pool, self.kv_cache.sliding.pool
        num_context = plan.num_context_tokens
        num_sampled = sum(scheduled.samples for scheduled in plan.requests)
        self._stats = IterationStats(
            iteration=before.iteration + (not plan.is_empty),
            num_running=self.scheduler.num_running,
            num_waiting=self.scheduler.num_waiting,
            num_context_tokens=num_context,
            num_generation_tokens=plan.num_tokens - num_context,
            full_blocks_used=full.num_used,
            full_blocks_free=full.num_free,
            sliding_blocks_used=sliding.num_used,
            sliding_blocks_free=sliding.num_free,
            schedule_us=times_ns[0] // 1000,
            session_us=times_ns[1] // 1000,
            advance_us=times_ns[2] // 1000,
            total_prompt_tokens=before.total_prompt_tokens + num_context,
            total_generated_tokens=before.total_generated_tokens + num_sampled,
        )
