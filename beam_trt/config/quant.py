"""Which precision an engine or checkpoint has, and which of its linears are quantized."""

from dataclasses import dataclass
from enum import StrEnum

from beam_trt.errors import ConfigError


class Precision(StrEnum):
    """Weight formats. FP32 is the reference precision for verification on CPU."""

    NVFP4 = "nvfp4"
    FP8 = "fp8"
    BF16 = "bf16"
    FP32 = "fp32"

    @classmethod
    def parse(cls, text: str) -> "Precision":
        try:
            return cls(text)
        except ValueError:
            raise ConfigError(
                f"precision: expected one of {', '.join(cls)}, found {text!r}."
            ) from None

    @property
    def is_quantized(self) -> bool:
        return self in (Precision.NVFP4, Precision.FP8)


NVFP4_BLOCK = 16
"""Columns that share one E4M3 scale in an NVFP4 matrix."""

FP8_MAX = 448.0
"""Largest finite E4M3 value."""

FP4_MAX = 6.0
"""Largest E2M1 value."""


@dataclass(frozen=True, slots=True)
class QuantConfig:
    """What is quantized how. Routers, norms, embeddings, gate_bias and lm_head never are.

    experts_only: leave attention and dense MLPs in bf16 and quantize routed experts alone.
    """

    precision: Precision
    experts_only: bool = False

    def __post_init__(self) -> None:
        if self.experts_only and not self.precision.is_quantized:
            raise ConfigError(
                f"quantization.experts_only: only means something for nvfp4 and fp8, "
                f"precision is {self.precision}."
            )

    def linear_precision(self, is_expert: bool) -> Precision:
        """Format of one linear's weight: a routed expert's, or any other decoder linear's."""
        if self.precision.is_quantized and (is_expert or not self.experts_only):
            return self.precision
        return Precision.FP32 if self.precision is Precision.FP32 else Precision.BF16
