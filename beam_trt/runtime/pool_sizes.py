"""How many KV blocks each lifetime gets out of the memory there is.

Integers only, so that the executor, every rank and a planner agree without touching a tensor.
"""

from dataclasses import dataclass

from beam_trt.config.mapping import Mapping
from beam_trt.config.model import ModelConfig
from beam_trt.config.runtime import RuntimeConfig
from beam_trt.errors import ConfigError

_DTYPE_BYTES = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Blocks of the two pools, the same on every rank."""

    num_full_blocks: int
    num_sliding_blocks: int

    @classmethod
    def resolve(cls, model: ModelConfig, mapping: Mapping, runtime: RuntimeConfig) -> "PoolSizes":
        """The given block counts, or `runtime.kv_cache_bytes` divided: sliding layers get what
        `max_batch_size` windows and one step's chunk need, at most half of the bytes; full layers
        get the rest. Neither gets more than `max_batch_size` sequences of `max_seq_len` could use.
        Raises ConfigError where not even one window and one full block fit."""
        if runtime.num_full_blocks is not None and runtime.num_sliding_blocks is not None:
            return cls(runtime.num_full_blocks, runtime.num_sliding_blocks)
        full_bytes = block_bytes(model, mapping, runtime, is_full=True)
        sliding_bytes = block_bytes(model, mapping, runtime, is_full=False)
        size, batch = runtime.tokens_per_block, runtime.max_batch_size
        whole = -(-runtime.max_seq_len // size)
        window = min(whole, (model.sliding_window + size - 2) // size + 1)
        chunk = -(-runtime.max_num_tokens // size)
        most_sliding = min(batch * window + chunk, batch * whole)
        half = runtime.kv_cache_bytes // 2
        affordable = half // sliding_bytes if sliding_bytes else most_sliding
        num_sliding = max(window, min(most_sliding, affordable))
        left = runtime.kv_cache_bytes - num_sliding * sliding_bytes
        num_full = min(batch * whole, left // full_bytes if full_bytes else batch * whole)
        if num_full < 1:
            needed = window * sliding_bytes + full_bytes
            raise ConfigError(
                f"runtime.kv_cache_bytes: {runtime.kv_cache_bytes} bytes hold not even one window "
                f"and one block; expected at least {needed}. Give the KV cache more memory."
            )
        return cls(num_full, num_sliding)


def block_bytes(model: ModelConfig, mapping: Mapping, runtime: RuntimeConfig, is_full: bool) -> int:
    """Bytes on one rank of one block of a lifetime, over all its layers; keys and values."""
    num_layers = model.num_full_layers if is_full else model.num_sliding_layers
    per_token = 2 * mapping.num_local_kv_heads(model) * model.head_dim
    return num_layers * runtime.tokens_per_block * per_token * _DTYPE_BYTES[runtime.kv_dtype]
