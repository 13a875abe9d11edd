"""Tensor-parallel ranks as real processes: the same answers, and no rank outlives its use."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from runtime_engines import Engines, random_prompt, runtime_of

from beam_trt.engine.manifest import EngineConfig
from beam_trt.errors import EngineError, ServerError
from beam_trt.runtime.executor import Executor
from beam_trt.runtime.local import GenerationResult, answer, open_executor
from beam_trt.runtime.rank_process import COLLECTIVES, Collectives
from beam_trt.runtime.request import Request, RequestOutput, SamplingParams
from beam_trt.runtime.workers import TensorParallelSession, open_session

WAIT_S = 60.0


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(tmp_path_factory.mktemp("engines"))


def crowd() -> tuple[list[tuple[int, ...]], list[SamplingParams]]:
    prompts = [random_prompt((23 * number) % 90 + 1, number) for number in range(10)]
    samplings = [
        SamplingParams(
            max_tokens=20,
            ignore_eos=True,
            logprobs=True,
            temperature=float(number % 2),
            top_p=0.9,
            seed=number,
        )
        for number in range(10)
    ]
    return prompts, samplings


@pytest.fixture(scope="module")
def single(engines: Engines) -> list[GenerationResult]:
    with open_executor(engines.folder(1), runtime_of()) as executor:
        return answer(executor, *crowd())


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("tp_size", "collectives"),
    [(2, "shared_memory"), (2, "gloo"), (4, "shared_memory"), (4, "gloo")],
)
def test_any_number_of_ranks_gives_the_same(
    engines: Engines, single: list[GenerationResult], tp_size: int, collectives: Collectives
) -> None:
    """Seeded samples too. Alone and in the crowd the bits are equal, as on one rank: partial sums
    are added in rank order whatever travels with them."""
    with open_executor(engines.folder(tp_size), runtime_of(), collectives) as executor:
        results = answer(executor, *crowd())
        prompts, samplings = crowd()
        (alone,) = answer(executor, prompts[3:4], samplings[3:4])
    for many, one in zip(results, single, strict=True):
        assert many.token_ids == one.token_ids
        assert many.logprobs == pytest.approx(one.logprobs, abs=1e-4)
    assert (alone.token_ids, alone.logprobs) == (results[3].token_ids, results[3].logprobs)


def test_greedy_tokens_of_four_ranks_are_transformers(engines: Engines) -> None:
    prompts = [random_prompt(length) for length in (1, 24, 63, 130)]
    sampling = SamplingParams(max_tokens=24, ignore_eos=True, logprobs=True)
    with open_executor(engines.folder(4), runtime_of(max_num_tokens=50)) as executor:
        results = answer(executor, prompts, [sampling] * 4)
    for prompt, result in zip(prompts, results, strict=True):
        tokens, logprobs = engines.greedy(prompt, 24)
        assert list(result.token_ids) == tokens
        assert result.logprobs == pytest.approx(logprobs, abs=1e-4)


@pytest.mark.parametrize("collectives", COLLECTIVES)
@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_ends_every_request_with_an_error(
    engines: Engines, collectives: Collectives, victim: int
) -> None:
    engine, runtime = EngineConfig.load(engines.folder(4)), runtime_of(max_batch_size=2)
    session = open_session(engines.folder(4), runtime, collectives=collectives)
    assert isinstance(session, TensorParallelSession)
    pids = session.pids
    executor = Executor(session, engine, runtime)
    started, ended = threading.Event(), threading.Semaphore(0)
    last: list[RequestOutput] = []

    def sink(output: RequestOutput) -> None:
        started.set()
        if output.is_last:
            last.append(output)
            ended.release()

    sampling = SamplingParams(max_tokens=300, ignore_eos=True)
    try:
        executor.start()
        for number in range(4):  # two run, two wait
            executor.submit(Request(f"r{number}", random_prompt(3), sampling), sink)
        assert started.wait(WAIT_S)
        os.kill(pids[victim], signal.SIGKILL)
        for _ in range(4):
            assert ended.acquire(timeout=WAIT_S)
        assert {output.finish_reason for output in last} == {"error"}
        wanted = f"rank {victim + 1} (process {pids[victim]}) was ended by SIGKILL"
        assert wanted in str(last[0].error)
        with pytest.raises(ServerError, match="was ended by SIGKILL"):
            executor.submit(Request("late", random_prompt(3), sampling), sink)
    finally:
        executor.close()
    assert all(is_gone(pid) for pid in pids)


def test_a_rank_that_dies_while_idle_is_noticed(engines: Engines) -> None:
    with open_executor(engines.folder(2), runtime_of()) as executor:
        assert isinstance(executor.session, TensorParallelSession)
        assert executor.health().healthy
        os.kill(executor.session.pids[0], signal.SIGKILL)
        wait_until(lambda: not executor.health().healthy, "the death of a rank went unnoticed")
        assert "rank 1" in str(executor.health().reason)


def test_closing_leaves_no_process_and_no_descriptor(engines: Engines) -> None:
    this = psutil.Process()
    with open_executor(engines.folder(2), runtime_of()):
        pass  # libraries open what they keep on first use
    before = (this.num_fds(), len(this.children()))
    for _ in range(2):
        with open_executor(engines.folder(2), runtime_of()) as executor:
            answer(executor, [random_prompt(4)], [SamplingParams(max_tokens=2)])
            assert len(this.children()) == before[1] + 1
    assert (this.num_fds(), len(this.children())) == before


def test_the_wrong_rank_count_is_refused_before_anything_is_loaded(engines: Engines) -> None:
    with pytest.raises(EngineError, match=r"built for tp_size 4, started with 2 ranks\. Start 4"):
        open_session(engines.folder(4), runtime_of(), num_ranks=2)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_damaged_rank_file_is_named(engines: Engines, tmp_path: Path, rank: int) -> None:
    folder = tmp_path / "engine"
    subprocess.run(["cp", "-r", str(engines.folder(2)), str(folder)], check=True)
    damaged = folder / f"rank{rank}.safetensors"
    damaged.write_bytes(b"\xff" * damaged.stat().st_size)
    this = psutil.Process()
    before = len(this.children())
    with pytest.raises(EngineError, match=rf"rank{rank}\.safetensors: damaged"):
        open_session(folder, runtime_of())
    assert len(this.children()) == before


PARENT = """
import json, sys, time
from pathlib import Path
from beam_trt.config.runtime import RuntimeConfig
from beam_trt.runtime.workers import open_session
session = open_session(Path(sys.argv[1]), RuntimeConfig(**json.loads(sys.argv[2])))
print(json.dumps(session.pids), flush=True)
time.sleep(600)
"""


def test_ranks_die_with_a_killed_parent(engines: Engines) -> None:
    values = {"max_seq_len": 320, "tokens_per_block": 16, "kv_dtype": "float32"}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(engines.folder(4)), json.dumps(values)],
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline())
        assert len(pids) == 3
        assert not any(is_gone(pid) for pid in pids)
        parent.kill()
    wait_until(lambda: all(is_gone(pid) for pid in pids), f"{pids} outlived their parent")
