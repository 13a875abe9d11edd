"""Generation in this process: open an engine, answer some prompts, close it.

For tests, verification and one-off use; a server keeps an `Executor` open instead.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from beam_trt.config.runtime import RuntimeConfig
from beam_trt.engine.manifest import EngineConfig
from beam_trt.errors import RequestError, ServerError
from beam_trt.runtime.executor import Executor
from beam_trt.runtime.rank_process import Collectives
from beam_trt.runtime.request import (
    FinishReason,
    Request,
    RequestOutput,
    SamplingParams,
    Timings,
    Usage,
)
from beam_trt.runtime.workers import open_session


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """All of one request: fields as in `RequestOutput`, `token_ids` and `logprobs` complete."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    finish_reason: FinishReason
    stop_token_id: int | None
    usage: Usage
    timings: Timings
    seed: int | None


@contextmanager
def open_executor(
    engine_dir: Path,
    runtime: RuntimeConfig | None = None,
    collectives: Collectives = "shared_memory",
) -> Iterator[Executor]:
    """A running executor on an engine, closed at the end. `runtime` None takes what the engine was
    built for. Errors as `workers.open_session`."""
    engine = EngineConfig.load(engine_dir)
    runtime = runtime or RuntimeConfig.from_build(engine.build)
    session = open_session(engine_dir, runtime, collectives=collectives)
    executor = Executor(session, engine, runtime)
    try:
        executor.start()
        yield executor
    finally:
        executor.close()


def generate(
    engine_dir: Path,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    runtime: RuntimeConfig | None = None,
    collectives: Collectives = "shared_memory",
    on_output: Callable[[int, RequestOutput], None] | None = None,
) -> list[GenerationResult]:
    """Answer `prompts` (token ids) together, each with `sampling`. `on_output(prompt_idx, output)`
    hears of every new token, from another thread. Raises RequestError when a prompt can never run
    and ServerError when the engine fails; errors of opening as `workers.open_session`."""
    with open_executor(engine_dir, runtime, collectives) as executor:
        return answer(executor, prompts, [sampling] * len(prompts), on_output)


def answer(
    executor: Executor,
    prompts: Sequence[Sequence[int]],
    samplings: Sequence[SamplingParams],
    on_output: Callable[[int, RequestOutput], None] | None = None,
) -> list[GenerationResult]:
    """`generate` on an executor that runs, each prompt with its own sampling."""
    pending = threading.Semaphore(0)
    outputs: list[list[RequestOutput]] = [[] for _ in prompts]

    def sink_of(idx: int) -> Callable[[RequestOutput], None]:
        def sink(output: RequestOutput) -> None:
            outputs[idx].append(output)
            try:
                if on_output is not None:
                    on_output(idx, output)
            finally:
                if output.is_last:
                    pending.release()

        return sink

    num_submitted = 0
    try:
        for idx, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True)):
            executor.submit(Request(f"{id(outputs)}-{idx}", tuple(prompt), sampling), sink_of(idx))
            num_submitted += 1
    except RequestError:
        for idx in range(num_submitted):
            executor.cancel(f"{id(outputs)}-{idx}")
        raise
    for _ in prompts:
        pending.acquire()
    return [_collect(parts) for parts in outputs]


def _collect(parts: Sequence[RequestOutput]) -> GenerationResult:
    last = parts[-1]
    if last.finish_reason == "error" or last.finish_reason is None:
        raise ServerError(last.error or "the engine ended a request without saying why.")
    logprobs = None
    if last.logprobs is not None:
        logprobs = tuple(value for part in parts for value in part.logprobs or ())
    return GenerationResult(
        token_ids=tuple(token_id for part in parts for token_id in part.token_ids),
        logprobs=logprobs,
        finish_reason=last.finish_reason,
        stop_token_id=last.stop_token_id,
        usage=last.usage,
        timings=last.timings,
        seed=last.seed,
    )
