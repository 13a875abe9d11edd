"""How the KV memory is divided; sizes agree with the tensors the model allocates."""

import pytest
import torch
from runtime_case import engine_config, runtime_config

from beam_trt.config.mapping import Mapping
from beam_trt.errors import ConfigError
from beam_trt.model.kv import KvPools
from beam_trt.runtime.pool_sizes import PoolSizes, block_bytes

MODEL = engine_config(sliding_window=6).model


def sizes(kv_cache_bytes: int, **changes: int) -> PoolSizes:
    runtime = runtime_config(
        num_full_blocks=None, num_sliding_blocks=None, kv_cache_bytes=kv_cache_bytes, **changes
    )
    return PoolSizes.resolve(MODEL, Mapping(), runtime)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("is_full", [True, False])
def test_block_bytes_are_the_pools(kv_dtype: str, is_full: bool) -> None:
    runtime = runtime_config(kv_dtype=kv_dtype)
    counts = (1, 0) if is_full else (0, 1)
    pools = KvPools.allocate(
        MODEL, Mapping(), *counts, runtime.tokens_per_block, getattr(torch, kv_dtype)
    )
    assert block_bytes(MODEL, Mapping(), runtime, is_full) == pools.num_bytes


def test_given_counts_are_taken() -> None:
    assert PoolSizes.resolve(MODEL, Mapping(), runtime_config()) == PoolSizes(40, 12)


def test_no_pool_gets_more_than_it_could_use() -> None:
    # 4 requests of 256 tokens are 128 blocks; their windows of 6 over blocks of 8 touch 2 each,
    # and a step's 16 tokens take 2 more
    assert sizes(2**30) == PoolSizes(128, 10)


def test_windows_get_at_most_half() -> None:
    one = block_bytes(MODEL, Mapping(), runtime_config(), is_full=True)
    assert sizes(14 * one) == PoolSizes(7, 7)
    assert sizes(40 * one) == PoolSizes(30, 10)


def test_all_bytes_hold_one_window_and_a_block_or_it_says_so() -> None:
    one = block_bytes(MODEL, Mapping(), runtime_config(), is_full=True)
    assert sizes(3 * one) == PoolSizes(1, 2)
    with pytest.raises(ConfigError, match=f"hold not even one window .* at least {3 * one}"):
        sizes(3 * one - 1)
