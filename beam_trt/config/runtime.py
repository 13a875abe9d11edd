"""How a built engine is run: the limits of one executor and the memory of its KV cache."""

from dataclasses import dataclass
from typing import Any

from beam_trt.config.build import BuildConfig, check_limits
from beam_trt.errors import ConfigError

DEFAULT_KV_CACHE_BYTES = 256 * 2**20
"""KV cache of one rank on CPU when nobody says otherwise: 256 MiB."""


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """Limits and memory of one executor, the same on every rank.

    max_batch_size, max_num_tokens, max_seq_len, tokens_per_block, kv_dtype: as in BuildConfig.
    kv_cache_bytes: both KV pools of one rank together; unused where both block counts are given.
    num_full_blocks, num_sliding_blocks: blocks of the two pools; None divides kv_cache_bytes.
    max_queued_requests: requests that may wait; one more is answered with an error.
    """

    max_seq_len: int
    max_batch_size: int = 32
    max_num_tokens: int = 512
    tokens_per_block: int = 64
    kv_dtype: str = "bfloat16"
    kv_cache_bytes: int = DEFAULT_KV_CACHE_BYTES
    num_full_blocks: int | None = None
    num_sliding_blocks: int | None = None
    max_queued_requests: int = 1024

    def __post_init__(self) -> None:
        check_limits("runtime", self)
        for name in ("kv_cache_bytes", "num_full_blocks", "num_sliding_blocks"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"runtime.{name}: expected at least 1, found {value}.")
        if (self.num_full_blocks is None) != (self.num_sliding_blocks is None):
            raise ConfigError(
                "runtime.num_full_blocks and runtime.num_sliding_blocks: give both or neither, "
                f"found {self.num_full_blocks} and {self.num_sliding_blocks}."
            )
        if self.max_queued_requests < 0:
            raise ConfigError(
                "runtime.max_queued_requests: expected at least 0, "
                f"found {self.max_queued_requests}."
            )

    @classmethod
    def from_build(cls, build: BuildConfig, **overrides: Any) -> "RuntimeConfig":
        """The engine's own limits, with `overrides` (field names) on top; None keeps the engine's.
        ConfigError where an override asks for more than the engine was built for."""
        values: dict[str, Any] = {
            "max_seq_len": build.max_seq_len,
            "max_batch_size": build.max_batch_size,
            "max_num_tokens": build.max_num_tokens,
            "tokens_per_block": build.tokens_per_block,
            "kv_dtype": build.kv_dtype,
        }
        given = {name: value for name, value in overrides.items() if value is not None}
        for name in ("max_seq_len", "max_batch_size", "max_num_tokens"):
            if given.get(name, 0) > values[name]:
                raise ConfigError(
                    f"runtime.{name}: the engine was built for at most {values[name]}, asked for "
                    f"{given[name]}. Ask for less, or rebuild with a larger {name}."
                )
        return cls(**(values | given))
