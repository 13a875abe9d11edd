"""How one model is spread over ranks: tensor parallel, with experts split by tensor or by expert.

Knows only integers; the group of processes behind it belongs to `runtime.workers`.
"""

from dataclasses import dataclass, replace

from beam_trt.config.model import ModelConfig
from beam_trt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Mapping:
    """Place of one rank. `tp_size` ranks share every layer; experts are split over `ep_size` of
    them and each expert's intermediate over the `tp_size // ep_size` ranks left."""

    tp_size: int = 1
    ep_size: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        if self.tp_size < 1 or self.ep_size < 1:
            raise ConfigError(
                f"mapping: tp_size and ep_size must be at least 1, got tp_size {self.tp_size}, "
                f"ep_size {self.ep_size}"
            )
        if self.tp_size % self.ep_size:
            raise ConfigError(
                f"mapping: ep_size must divide tp_size, got ep_size {self.ep_size} with "
                f"tp_size {self.tp_size}"
            )
        if not 0 <= self.rank < self.tp_size:
            raise ConfigError(f"mapping: rank {self.rank} is not within 0..{self.tp_size - 1}")

    @property
    def moe_tp_size(self) -> int:
        """Ranks that share one expert's intermediate dimension."""
        return self.tp_size // self.ep_size

    @property
    def moe_tp_rank(self) -> int:
        return self.rank % self.moe_tp_size

    @property
    def ep_rank(self) -> int:
        return self.rank // self.moe_tp_size

    def with_rank(self, rank: int) -> "Mapping":
        """The same layout seen from another rank."""
        return replace(self, rank=rank)

    def num_local_heads(self, config: ModelConfig) -> int:
        return config.num_attention_heads // self.tp_size

    def num_local_kv_heads(self, config: ModelConfig) -> int:
        """KV heads are split up to their number and replicated above it."""
        return max(1, config.num_key_value_heads // self.tp_size)

    def first_kv_head(self, config: ModelConfig) -> int:
        """Index of this rank's first KV head in the whole model."""
        return self.rank * config.num_key_value_heads // self.tp_size

    def num_local_experts(self, config: ModelConfig) -> int:
        return config.num_experts // self.ep_size

    def first_expert(self, config: ModelConfig) -> int:
        return self.ep_rank * self.num_local_experts(config)

    def validate(self, config: ModelConfig) -> None:
        """Raise ConfigError where `config` cannot be split this way, naming what would work."""
        problems: list[str] = []
        if config.num_attention_heads % self.tp_size:
            problems.append(
                f"{config.num_attention_heads} query heads % tp_size {self.tp_size} != 0"
            )
        kv = config.num_key_value_heads
        if kv % self.tp_size and self.tp_size % kv:
            problems.append(
                f"{kv} KV heads neither divide nor are divided by tp_size {self.tp_size}"
            )
        if config.vocab_size % self.tp_size:
            problems.append(f"vocab_size {config.vocab_size} % tp_size {self.tp_size} != 0")
        if config.has_dense and config.intermediate_size % self.tp_size:
            problems.append(
                f"intermediate_size {config.intermediate_size} % tp_size {self.tp_size} != 0"
            )
        if config.has_moe:
            if config.num_experts % self.ep_size:
                problems.append(f"{config.num_experts} experts % ep_size {self.ep_size} != 0")
            if config.moe_intermediate_size % self.moe_tp_size:
                problems.append(
                    f"moe_intermediate_size {config.moe_intermediate_size} % "
                    f"{self.moe_tp_size} ranks per expert != 0"
                )
        if problems:
            raise ConfigError(
                f"mapping tp_size {self.tp_size}, ep_size {self.ep_size} does not fit this model: "
                + "; ".join(problems)
                + f". Possible tp_size here: {possible_tp_sizes(config)}"
            )


def possible_tp_sizes(config: ModelConfig, limit: int = 64) -> list[int]:
    """Tensor parallel sizes up to `limit` that split heads, vocabulary and MLPs evenly."""
    sizes = []
    for tp in range(1, limit + 1):
        kv = config.num_key_value_heads
        even = [config.num_attention_heads, config.vocab_size]
        even += [config.intermediate_size] if config.has_dense else []
        even += [config.moe_intermediate_size] if config.has_moe else []
        if all(n % tp == 0 for n in even) and (kv % tp == 0 or tp % kv == 0):
            sizes.append(tp)
    return sizes
