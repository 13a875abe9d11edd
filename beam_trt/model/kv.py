"""The paged KV memory of one rank: one tensor a layer, blocks of two lifetimes.

Knows nothing about who owns a block; `runtime.block_pool` does.
"""

from dataclasses import dataclass

import torch

from beam_trt.config.mapping import Mapping
from beam_trt.config.model import ModelConfig


@dataclass(frozen=True, slots=True)
class KvPools:
    """KV of all layers. `layers[l]` is [num_blocks, 2 (K, V), kv_heads, tokens_per_block,
    head_dim], so that one head's keys of one block are contiguous. Full layers have
    `num_full_blocks` blocks, sliding layers `num_sliding_blocks`; block i of a lifetime is block i
    in each of its layers. Memory is not cleared: only what a step has written is ever read."""

    layers: tuple[torch.Tensor, ...]
    tokens_per_block: int

    @classmethod
    def allocate(
        cls,
        config: ModelConfig,
        mapping: Mapping,
        num_full_blocks: int,
        num_sliding_blocks: int,
        tokens_per_block: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> "KvPools":
        """Uninitialized memory of `bytes_per_block(...)` bytes for each block of each lifetime."""
        kv_heads = mapping.num_local_kv_heads(config)
        layers = tuple(
            torch.empty(
                num_full_blocks if config.is_full(layer_idx) else num_sliding_blocks,
                2,
                kv_heads,
                tokens_per_block,
                config.head_dim,
                dtype=dtype,
                device=device,
            )
            for layer_idx in range(config.num_hidden_layers)
        )
        return cls(layers, tokens_per_block)

    @property
    def num_bytes(self) -> int:
        return sum(layer.numel() * layer.element_size() for layer in self.layers)


def bytes_per_block(
    config: ModelConfig, mapping: Mapping, tokens_per_block: int, dtype: torch.dtype, is_full: bool
) -> int:
    """Bytes on one rank of one block of a lifetime, over all layers of that lifetime."""
    num_layers = config.num_full_layers if is_full else config.num_sliding_layers
    per_token = 2 * mapping.num_local_kv_heads(config) * config.head_dim * dtype.itemsize
    return int(num_layers * tokens_per_block * per_token)
