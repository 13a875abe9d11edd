"""Blocks of two lifetimes: who holds what, and for how long."""

import random

import pytest

from beam_trt.runtime.block_pool import BlockPool
from beam_trt.runtime.kv_cache import KvCacheManager


def test_pool_hands_out_each_block_once_and_takes_it_back() -> None:
    pool = BlockPool(3)
    blocks = [pool.allocate() for _ in range(3)]
    assert sorted(blocks) == [0, 1, 2]
    assert (pool.num_free, pool.num_used) == (0, 3)
    pool.share(blocks[1])
    pool.release(blocks[1])
    assert pool.num_free == 0
    pool.release(blocks[1])
    assert pool.allocate() == blocks[1]
    pool.check_integrity(blocks)


def test_pool_refuses_what_cannot_be() -> None:
    pool = BlockPool(1)
    with pytest.raises(AssertionError, match="block 0 is already free"):
        pool.release(0)
    with pytest.raises(AssertionError, match="block 0 is free and cannot be shared"):
        pool.share(0)
    pool.allocate()
    with pytest.raises(AssertionError, match="no free block of 1"):
        pool.allocate()


def test_integrity_prints_both_sides() -> None:
    pool = BlockPool(2)
    pool.allocate()
    with pytest.raises(AssertionError, match=r"pool counts owners \{0: 1\}, owners hold \{1: 1\}"):
        pool.check_integrity([1])
    with pytest.raises(AssertionError, match=r"\{0: 1\}, owners hold \{0: 2\}"):
        pool.check_integrity([0, 0])


def held_positions(cache: KvCacheManager, lifetime: str, tokens_per_block: int) -> set[int]:
    table = getattr(cache, lifetime).tables["a"]
    return {
        idx * tokens_per_block + offset
        for idx, block in enumerate(table.blocks)
        if block >= 0
        for offset in range(tokens_per_block)
    }


@pytest.mark.parametrize("tokens_per_block", [1, 4, 8])
@pytest.mark.parametrize("window", [2, 3, 4, 5, 8, 9, 64])
def test_sliding_blocks_live_while_a_query_can_see_them(tokens_per_block: int, window: int) -> None:
    """At every length: all that the next query sees is held, nothing else but the rest of the
    block that its window begins in."""
    cache = KvCacheManager(200, 100, tokens_per_block, window)
    cache.admit("a", 120)
    most_held = cache.sliding.worst_case(120)
    cached = 0
    generator = random.Random(f"{tokens_per_block} {window}")
    while cached < 120:
        num_tokens = min(120 - cached, generator.choice([1, 1, 1, 5, 17]))
        cache.extend("a", cached + num_tokens)
        seen = set(range(max(0, cached - window + 1), cached + num_tokens))
        assert seen <= held_positions(cache, "sliding", tokens_per_block)
        cached += num_tokens
        cache.trim("a", cached)
        cache.check_integrity()
        held = held_positions(cache, "sliding", tokens_per_block)
        first_seen = max(0, cached - window + 1)
        assert set(range(first_seen, cached)) <= held
        assert min(held, default=cached) > first_seen - tokens_per_block
        assert held_positions(cache, "full", tokens_per_block) >= set(range(cached))
        assert cache.sliding.tables["a"].num_held <= most_held
    cache.release("a")
    assert cache.full.pool.num_free == 200
    assert cache.sliding.pool.num_free == 100


@pytest.mark.parametrize("window", [2, 7, 8, 9, 15, 16, 17])
def test_worst_case_of_a_window_is_reached_and_never_exceeded(window: int) -> None:
    cache = KvCacheManager(100, 100, 8, window)
    cache.admit("a", 200)
    most = 0
    for cached in range(200):
        cache.extend("a", cached + 1)
        most = max(most, cache.sliding.tables["a"].num_held)
        cache.trim("a", cached + 1)
    assert most == cache.sliding.worst_case(200)


def test_admission_keeps_the_worst_case_of_the_others_free() -> None:
    cache = KvCacheManager(10, 10, 8, 8)
    cache.admit("a", 40)
    assert cache.full.num_spare == 5
    assert cache.can_admit(40)
    assert not cache.can_admit(41)
    cache.extend("a", 16)
    assert cache.full.num_spare == 5
    cache.admit("b", 40)
    assert not cache.can_admit(1)
    cache.release("a")
    assert cache.can_admit(40)
    cache.check_integrity()


def test_a_chunk_uses_blocks_that_nobody_reserved_and_shrinks_without_them() -> None:
    cache = KvCacheManager(100, 8, 8, 10)
    cache.admit("a", 200)
    assert cache.sliding.tables["a"].reserved == 3
    assert cache.most_tokens("a", 0) == 64
    cache.admit("b", 200)
    assert cache.most_tokens("a", 0) == 40
    cache.extend("a", 40)
    assert cache.most_tokens("b", 0) == 24
    assert not cache.can_admit(1)
    cache.trim("a", 40)
    assert cache.can_admit(1)
    cache.check_integrity()


@pytest.mark.parametrize(
    ("num_full", "num_sliding", "window", "expected"),
    [
        (10, 10, 8, 80),
        (10, 3, 8, 80),
        (10, 2, 9, 80),
        (10, 2, 10, 16),
        (10, 1, 64, 8),
        (2, 50, 512, 16),
    ],
)
def test_the_longest_sequence_that_fits(
    num_full: int, num_sliding: int, window: int, expected: int
) -> None:
    cache = KvCacheManager(num_full, num_sliding, 8, window)
    assert cache.max_tokens_per_sequence == expected
    assert cache.can_ever_fit(expected)
    assert not cache.can_ever_fit(expected + 1)
