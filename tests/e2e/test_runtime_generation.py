"""The native runtime on a real model, one rank: transformers' tokens, whoever else is served."""

import threading
from pathlib import Path
from typing import Any

import pytest
from runtime_engines import Engines, random_prompt, runtime_of

from beam_trt.errors import RequestError
from beam_trt.runtime.local import GenerationResult, answer, generate, open_executor
from beam_trt.runtime.request import Request, RequestOutput, SamplingParams

LENGTHS = (1, 2, 15, 16, 17, 23, 24, 25, 47, 64, 65, 150)
NUM_TOKENS = 40


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(tmp_path_factory.mktemp("engines"))


def mixed_sampling(number: int) -> SamplingParams:
    """Greedy and seeded sampling of every kind, in turn."""
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 20},
        {"temperature": 1.2, "top_p": 0.8},
    )
    return SamplingParams(
        max_tokens=16 + number, ignore_eos=True, logprobs=True, seed=number, **kinds[number % 4]
    )


def crowd() -> tuple[list[tuple[int, ...]], list[SamplingParams]]:
    prompts = [random_prompt((7 * number * number) % 120 + 1, number) for number in range(16)]
    return prompts, [mixed_sampling(number) for number in range(16)]


@pytest.fixture(scope="module")
def crowd_results(engines: Engines) -> list[GenerationResult]:
    with open_executor(engines.folder(1), runtime_of()) as executor:
        return answer(executor, *crowd())


def same(one: GenerationResult, other: GenerationResult) -> bool:
    """Equal tokens and bit-equal log-probabilities."""
    return (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs)


def test_greedy_tokens_are_transformers(engines: Engines) -> None:
    """Alone, in blocks of 16 with windows of 24: prompts and answers cross every boundary."""
    prompts = [random_prompt(length) for length in LENGTHS]
    sampling = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=True)
    results = generate(engines.folder(1), prompts, sampling, runtime_of())
    for prompt, result in zip(prompts, results, strict=True):
        tokens, logprobs = engines.greedy(prompt, NUM_TOKENS)
        assert list(result.token_ids) == tokens, f"prompt of {len(prompt)}"
        assert result.finish_reason == "length"
        assert result.logprobs == pytest.approx(logprobs, abs=1e-4)


def test_a_request_alone_is_the_same_as_in_a_crowd(
    engines: Engines, crowd_results: list[GenerationResult]
) -> None:
    prompts, samplings = crowd()
    with open_executor(engines.folder(1), runtime_of()) as executor:
        for number in (0, 1, 5, 7, 10, 15):
            (alone,) = answer(executor, [prompts[number]], [samplings[number]])
            assert same(alone, crowd_results[number]), number


@pytest.mark.parametrize("budget", [16, 23, 64, 512])
def test_chunks_of_any_size_give_the_same(
    engines: Engines, crowd_results: list[GenerationResult], budget: int
) -> None:
    with open_executor(engines.folder(1), runtime_of(max_num_tokens=budget)) as executor:
        results = answer(executor, *crowd())
    for number, (chunked, whole) in enumerate(zip(results, crowd_results, strict=True)):
        assert same(chunked, whole), number


@pytest.mark.parametrize("chunk", [1, 2, 7, 16, 24, 25, 149])
def test_one_prompt_in_chunks_gives_the_same(engines: Engines, chunk: int) -> None:
    """One token at a time up to all but one; the batch limit leaves the whole budget to it."""
    sampling = SamplingParams(max_tokens=4, ignore_eos=True, logprobs=True)
    prompt = random_prompt(150 if chunk > 1 else 50)
    (whole,) = generate(engines.folder(1), [prompt], sampling, runtime_of())
    limits = runtime_of(max_num_tokens=chunk, max_batch_size=1)
    (chunked,) = generate(engines.folder(1), [prompt], sampling, limits)
    assert same(whole, chunked)


def test_little_memory_changes_nothing_but_the_time(
    engines: Engines, crowd_results: list[GenerationResult]
) -> None:
    """Room for about two requests: the others wait, blocks change hands all the time."""
    limits = runtime_of(num_full_blocks=20, num_sliding_blocks=7)
    with open_executor(engines.folder(1), limits) as executor:
        results = answer(executor, *crowd())
        executor.check_integrity()
        stats = executor.stats()
        assert (stats.full_blocks_used, stats.sliding_blocks_used) == (0, 0)
    for number, (tight, roomy) in enumerate(zip(results, crowd_results, strict=True)):
        assert same(tight, roomy), number


def test_requests_join_a_running_batch(
    engines: Engines, crowd_results: list[GenerationResult]
) -> None:
    prompts, samplings = crowd()
    started, ended = threading.Event(), threading.Semaphore(0)
    joined: list[RequestOutput] = []
    first: list[RequestOutput] = []
    first_when_joined_ended: list[int] = []

    def watch_first(output: RequestOutput) -> None:
        first.append(output)
        if len(first) == 3:
            started.set()
        if output.is_last:
            ended.release()

    def watch_joined(output: RequestOutput) -> None:
        joined.append(output)
        if output.is_last:
            first_when_joined_ended.append(len(first))
            ended.release()

    with open_executor(engines.folder(1), runtime_of()) as executor:
        executor.submit(
            Request("first", random_prompt(5), SamplingParams(max_tokens=80, ignore_eos=True)),
            watch_first,
        )
        assert started.wait(60)
        executor.submit(Request("joined", prompts[1], samplings[1]), watch_joined)
        for _ in range(2):
            assert ended.acquire(timeout=60)
    assert first_when_joined_ended[0] < len(first), "the second waited for the first to end"
    assert tuple(o.token_ids[0] for o in joined) == crowd_results[1].token_ids
    assert tuple(t for o in first for t in o.token_ids) == tuple(
        engines.greedy(random_prompt(5), 80)[0]
    )


def test_seeds_reproduce_and_unseeded_requests_say_theirs(engines: Engines) -> None:
    prompt = random_prompt(9)
    with open_executor(engines.folder(1), runtime_of()) as executor:
        free = SamplingParams(max_tokens=20, temperature=1.5, ignore_eos=True)
        one, two = answer(executor, [prompt] * 2, [free] * 2)
        assert one.seed != two.seed
        assert one.token_ids != two.token_ids
        assert one.seed is not None
        again = SamplingParams(max_tokens=20, temperature=1.5, ignore_eos=True, seed=one.seed)
        (replayed,) = answer(executor, [prompt], [again])
        assert replayed.token_ids == one.token_ids


def test_stop_tokens_end_where_transformers_text_has_them(engines: Engines) -> None:
    prompt = random_prompt(12)
    tokens, _ = engines.greedy(prompt, 30)
    stop = tokens[9]
    sampling = SamplingParams(max_tokens=30, ignore_eos=True, stop_token_ids=(stop,))
    (result,) = generate(engines.folder(1), [prompt], sampling, runtime_of())
    assert list(result.token_ids) == tokens[: tokens.index(stop) + 1]
    assert (result.finish_reason, result.stop_token_id) == ("stop", stop)


def test_a_prompt_over_the_limit_is_refused_and_the_others_are_not_lost(engines: Engines) -> None:
    with open_executor(engines.folder(1), runtime_of()) as executor:
        prompts = [random_prompt(5), random_prompt(320)]
        with pytest.raises(RequestError, match="longer than the limit: max_seq_len 320"):
            answer(executor, prompts, [SamplingParams(max_tokens=4)] * 2)
        (result,) = answer(executor, prompts[:1], [SamplingParams(max_tokens=4, ignore_eos=True)])
        assert list(result.token_ids) == engines.greedy(prompts[0], 4)[0]


def test_bf16_is_the_same_alone_and_in_a_crowd(tmp_path: Path) -> None:
    import torch
    from checkpoints import small_config, write_checkpoint

    from beam_trt.config.build import BuildConfig
    from beam_trt.config.mapping import Mapping
    from beam_trt.config.quant import Precision, QuantConfig
    from beam_trt.engine.build import build_engine

    config = small_config(num_hidden_layers=6, sliding_window=24)
    write_checkpoint(tmp_path / "checkpoint", config, dtype=torch.bfloat16)
    build = BuildConfig(max_seq_len=256, tokens_per_block=16)
    build_engine(
        tmp_path / "checkpoint", tmp_path / "engine", QuantConfig(Precision.BF16), Mapping(), build
    )
    prompts, samplings = crowd()
    with open_executor(tmp_path / "engine") as executor:
        together = answer(executor, prompts[:8], samplings[:8])
        for number in range(3, 6):
            (alone,) = answer(executor, [prompts[number]], [samplings[number]])
            assert same(alone, together[number])
