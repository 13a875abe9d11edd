"""What an engine is built for, apart from the model and how it is spread over ranks.

An engine's config.json stores it; the runtime takes its limits from it.
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from beam_trt.config.hardware import Gpu
from beam_trt.config.model import DTYPES, ModelConfig
from beam_trt.errors import BeamTrtError, ConfigError

TOKENS_PER_BLOCK = (8, 16, 32, 64, 128)
"""Sizes of a KV block, in tokens."""


class RuntimeKind(StrEnum):
    """What will run the engine. This version builds for its own runtime, `native`, only."""

    NATIVE = "native"
    TENSORRT = "tensorrt"
    TENSORRT_LLM = "tensorrt-llm"

    @classmethod
    def parse(cls, text: str) -> "RuntimeKind":
        try:
            return cls(text)
        except ValueError:
            raise ConfigError(
                f"runtime: expected one of {', '.join(cls)}, found {text!r}."
            ) from None

    def check_buildable(self) -> None:
        """BeamTrtError for the runtimes this version writes no engines for."""
        if self is not RuntimeKind.NATIVE:
            raise BeamTrtError(
                f"runtime {self}: this version of beam-trt builds engines for the native runtime "
                "only. Use --runtime native, or leave the option out."
            )


@dataclass(frozen=True, slots=True)
class BuildConfig:
    """Limits and targets one engine was built with.

    max_batch_size: requests that can be in generation at once.
    max_num_tokens: tokens of one step, all requests together.
    max_seq_len: tokens of one sequence, prompt and answer together.
    tokens_per_block: tokens in one KV block.
    kv_dtype: element type of the KV blocks.
    gpu: name in the GPU table the engine is for; None is the CPU.
    """

    max_seq_len: int
    max_batch_size: int = 32
    max_num_tokens: int = 512
    tokens_per_block: int = 64
    kv_dtype: str = "bfloat16"
    gpu: str | None = None
    runtime: RuntimeKind = RuntimeKind.NATIVE

    def __post_init__(self) -> None:
        check_limits("build_config", self)
        if self.gpu is not None:
            Gpu.named(self.gpu)

    @property
    def target(self) -> str:
        """The machine the engine is for, as messages print it: `cpu` or a GPU's name."""
        return self.gpu or "cpu"

    def check_model(self, config: ModelConfig) -> None:
        """ConfigError where the model cannot do what the engine would promise."""
        if self.max_seq_len > config.max_position_embeddings:
            raise ConfigError(
                f"build_config.max_seq_len: expected at most the model's max_position_embeddings "
                f"{config.max_position_embeddings}, found {self.max_seq_len}."
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back."""
        return {key: str(v) if isinstance(v, StrEnum) else v for key, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "BuildConfig":
        """Inverse of `to_dict`."""
        return cls(**{**values, "runtime": RuntimeKind.parse(values.get("runtime", "native"))})


def check_limits(where: str, config: Any) -> None:
    """ConfigError, naming `where` and the field, for a limit that cannot be right. `config` has the
    fields max_batch_size, max_num_tokens, max_seq_len, tokens_per_block and kv_dtype."""
    for name in ("max_batch_size", "max_num_tokens", "max_seq_len"):
        value = getattr(config, name)
        if value < 1:
            raise ConfigError(f"{where}.{name}: expected at least 1, found {value}.")
    if config.max_num_tokens < config.max_batch_size:
        raise ConfigError(
            f"{where}.max_num_tokens: expected at least max_batch_size {config.max_batch_size} "
            f"(one token a request), found {config.max_num_tokens}."
        )
    if config.tokens_per_block not in TOKENS_PER_BLOCK:
        raise ConfigError(
            f"{where}.tokens_per_block: expected one of {', '.join(map(str, TOKENS_PER_BLOCK))}, "
            f"found {config.tokens_per_block}."
        )
    if config.kv_dtype not in DTYPES:
        raise ConfigError(
            f"{where}.kv_dtype: expected one of {', '.join(DTYPES)}, found {config.kv_dtype!r}."
        )
