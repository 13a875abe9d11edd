"""Random arrivals, lengths and cancellations on tiny pools; every invariant after every step."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_case import Case, Collected, expected_tokens

SHAPES = (
    {"max_batch_size": 4, "max_num_tokens": 16, "num_full_blocks": 40, "num_sliding_blocks": 12},
    {"max_batch_size": 8, "max_num_tokens": 8, "num_full_blocks": 9, "num_sliding_blocks": 9},
    {"max_batch_size": 3, "max_num_tokens": 64, "num_full_blocks": 12, "num_sliding_blocks": 3},
    {"max_batch_size": 1, "max_num_tokens": 1, "num_full_blocks": 6, "num_sliding_blocks": 2},
)


@pytest.mark.parametrize("shape", range(len(SHAPES)))
@pytest.mark.parametrize("window", [2, 6, 8, 9, 17])
def test_every_request_ends_once_with_its_tokens(shape: int, window: int) -> None:
    generator = random.Random(f"{shape} {window}")
    tokens_per_block = 8
    case = Case.build(window, tokens_per_block=tokens_per_block, **SHAPES[shape])
    most = min(case.executor.limits.max_cached_tokens, 250)
    cancelled: set[str] = set()
    wanted: dict[str, tuple[tuple[int, ...], int]] = {}
    for number in range(60):
        for _ in range(generator.randrange(4)):
            length = generator.randint(1, max(1, most - 2))
            max_tokens = generator.randint(1, min(30, most + 1 - length))
            name = f"r{number}-{len(wanted)}"
            prompt = tuple(generator.randrange(97) for _ in range(length))
            wanted[name] = (prompt, max_tokens)
            case.submit(name, prompt, max_tokens=max_tokens)
        case.step()
        if generator.random() < 0.3 and wanted:
            victim = generator.choice(sorted(wanted))
            if not case.sinks[victim].is_ended:
                cancelled.add(victim)
            case.executor.cancel(victim)
    case.run()
    assert case.executor.kv_cache.full.pool.num_used == 0
    assert case.executor.kv_cache.sliding.pool.num_used == 0
    for name, (prompt, max_tokens) in wanted.items():
        sink = case.sinks[name]
        expected = expected_tokens(prompt, max_tokens)
        if sink.last.finish_reason == "cancelled":
            assert name in cancelled
            assert sink.token_ids == expected[: len(sink.token_ids)]
        else:
            assert sink.token_ids == expected, name


@settings(max_examples=60, deadline=None)
@given(
    window=st.integers(2, 40),
    batch=st.integers(1, 5),
    extra_tokens=st.integers(0, 40),
    num_full=st.integers(1, 12),
    num_sliding=st.integers(1, 12),
    requests=st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 12), st.integers(0, 6)), max_size=12
    ),
)
def test_any_pool_that_fits_one_request_serves_them_all(
    window: int,
    batch: int,
    extra_tokens: int,
    num_full: int,
    num_sliding: int,
    requests: list[tuple[int, int, int]],
) -> None:
    case = Case.build(
        window,
        max_batch_size=batch,
        max_num_tokens=batch + extra_tokens,
        num_full_blocks=num_full,
        num_sliding_blocks=num_sliding,
    )
    most = min(case.executor.limits.max_cached_tokens, 250)
    sinks: list[tuple[Collected, tuple[int, ...], int]] = []
    for number, (length, max_tokens, pause) in enumerate(requests):
        if length + max_tokens - 1 > most:
            continue
        prompt = tuple((number * 31 + at * 7) % 97 for at in range(length))
        sink = case.submit(f"r{number}", prompt, max_tokens=max_tokens, ignore_eos=True)
        sinks.append((sink, prompt, max_tokens))
        for _ in range(pause):
            case.step()
    case.run()
    for sink, prompt, max_tokens in sinks:
        assert sink.token_ids == expected_tokens(prompt, max_tokens, ignore_eos=True)


def prompt_of(length: int) -> tuple[int, ...]:
    return tuple((at * 7 + length) % 97 for at in range(length))


def test_nobody_starves_under_a_stream_of_long_prompts() -> None:
    """A request waits at most for those before it: each of them needs its chunks and its tokens,
    and those that come later change nothing."""
    case = Case.build(max_batch_size=2, max_num_tokens=8, num_full_blocks=30)
    before = [(100, 20), (90, 10), (80, 20)]
    for number, (length, max_tokens) in enumerate(before):
        case.submit(f"before{number}", prompt_of(length), max_tokens=max_tokens)
    small = case.submit("small", (5, 6, 7), max_tokens=2, ignore_eos=True)
    chunk = 8 - 1  # the budget less the one other request that can be generating
    bound = sum(-(-length // chunk) + max_tokens for length, max_tokens in before) + 1 + 2
    steps = 0
    while not small.is_ended:
        case.submit(f"late{steps}", prompt_of(60), max_tokens=20)
        case.step()
        steps += 1
        assert steps <= bound, f"{steps} steps, bound {bound}"


def test_requests_start_in_order_of_arrival() -> None:
    case = Case.build(max_batch_size=2, max_num_tokens=8, num_full_blocks=16)
    for number in range(8):
        length = 70 if number % 3 == 0 else 4
        case.submit(f"r{number}", prompt_of(length), max_tokens=5, ignore_eos=True)
    case.run()
    starts = [case.sinks[f"r{number}"].last.timings.first_scheduled for number in range(8)]
    assert starts == sorted(starts, key=lambda value: value or 0)
