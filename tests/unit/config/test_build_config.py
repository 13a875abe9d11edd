"""Limits of builds and runs: what is accepted, and what the messages say."""

from typing import Any

import pytest

from beam_trt.config.build import BuildConfig, RuntimeKind
from beam_trt.config.runtime import RuntimeConfig
from beam_trt.errors import BeamTrtError, ConfigError


def test_a_build_config_survives_its_json_form() -> None:
    build = BuildConfig(4096, 8, 64, 32, "float32", "h200")
    assert BuildConfig.from_dict(build.to_dict()) == build
    assert build.to_dict()["runtime"] == "native"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_len": 0}, "build_config.max_seq_len: expected at least 1, found 0"),
        ({"max_batch_size": 0}, "build_config.max_batch_size: expected at least 1, found 0"),
        ({"max_num_tokens": 31}, "expected at least max_batch_size 32"),
        ({"tokens_per_block": 48}, "expected one of 8, 16, 32, 64, 128, found 48"),
        ({"kv_dtype": "int8"}, "expected one of bfloat16, float32, found 'int8'"),
        ({"gpu": "h20"}, "gpu: 'h20' is not in the GPU table. Did you mean 'h200'?"),
    ],
)
def test_a_wrong_limit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=r"^(build_config|gpu)") as error:
        BuildConfig(**({"max_seq_len": 1024} | changes))
    assert message in str(error.value)


def test_other_runtimes_are_known_and_refused() -> None:
    RuntimeKind.parse("native").check_buildable()
    for name in ("tensorrt", "tensorrt-llm"):
        with pytest.raises(BeamTrtError, match=f"runtime {name}: .*native runtime only"):
            RuntimeKind.parse(name).check_buildable()
    with pytest.raises(ConfigError, match="native, tensorrt, tensorrt-llm, found 'vllm'"):
        RuntimeKind.parse("vllm")


def test_a_run_takes_the_limits_of_its_build() -> None:
    build = BuildConfig(4096, 16, 256, 32, "float32")
    runtime = RuntimeConfig.from_build(build)
    for name in ("max_seq_len", "max_batch_size", "max_num_tokens", "tokens_per_block", "kv_dtype"):
        assert getattr(runtime, name) == getattr(build, name)


def test_a_run_may_ask_for_less_and_not_for_more() -> None:
    build = BuildConfig(4096)
    asked = RuntimeConfig.from_build(build, max_seq_len=100, max_batch_size=None)
    assert (asked.max_seq_len, asked.max_batch_size) == (100, build.max_batch_size)
    with pytest.raises(ConfigError, match="built for at most 4096, asked for 4097"):
        RuntimeConfig.from_build(build, max_seq_len=4097)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_full_blocks": 4}, "give both or neither, found 4 and None"),
        ({"num_full_blocks": 0, "num_sliding_blocks": 1}, "num_full_blocks: expected at least 1"),
        ({"kv_cache_bytes": 0}, "kv_cache_bytes: expected at least 1, found 0"),
        ({"max_queued_requests": -1}, "max_queued_requests: expected at least 0, found -1"),
    ],
)
def test_a_wrong_runtime_value_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        RuntimeConfig(1024, **changes)
    assert message in str(error.value)
