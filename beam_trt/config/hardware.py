"""The GPUs beam-trt knows by name; the table itself is `assets/gpus.yaml`, with its sources."""

import difflib
from dataclasses import dataclass
from functools import cache
from importlib import resources

import yaml

from beam_trt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU model.

    name: as `--gpu` takes it. sm: compute capability times ten (90 is 9.0).
    memory_gb, bandwidth_gb_s: 10^9 bytes and 10^9 bytes a second, as published.
    achievable_gb_s: bandwidth a streaming kernel was seen to reach, None where not measured.
    link_gb_s: NVLink or PCIe to its neighbours, one direction, as published.
    {bf16,fp8,nvfp4}_tflops: dense tensor-core peak, None where the format is not native.
    """

    name: str
    title: str
    sm: int
    memory_gb: float
    bandwidth_gb_s: float
    achievable_gb_s: float | None
    bf16_tflops: float
    fp8_tflops: float | None
    nvfp4_tflops: float | None
    link_gb_s: float

    def __post_init__(self) -> None:
        for field in ("sm", "memory_gb", "bandwidth_gb_s", "bf16_tflops", "link_gb_s"):
            if not getattr(self, field) > 0:
                raise ConfigError(f"GPU {self.name}: {field} must be positive.")

    @property
    def native_fp8(self) -> bool:
        return self.fp8_tflops is not None

    @property
    def native_nvfp4(self) -> bool:
        return self.nvfp4_tflops is not None

    @classmethod
    def named(cls, name: str) -> "Gpu":
        """The GPU called `name`; ConfigError listing the known ones otherwise."""
        table = gpus()
        if name not in table:
            close = difflib.get_close_matches(name.lower().replace("-", "_"), table, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigError(
                f"gpu: {name!r} is not in the GPU table.{hint} Known: {', '.join(table)}."
            )
        return table[name]


@cache
def gpus() -> dict[str, Gpu]:
    """The whole table, by name, in file order."""
    text = resources.files("beam_trt.assets").joinpath("gpus.yaml").read_text(encoding="utf-8")
    return {name: Gpu(name=name, **fields) for name, fields in yaml.safe_load(text).items()}
