"""One deployment as a YAML file states it: precision, ranks, target and limits of a build.

The bundled ones are the package `beam_trt.build_configs`, found by name.
"""

import difflib
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from beam_trt.config.build import BuildConfig, RuntimeKind
from beam_trt.config.hardware import Gpu
from beam_trt.config.load import load_yaml, parse_yaml
from beam_trt.config.mapping import Mapping
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RankLayout:
    """Ranks of the deployment; see config.mapping.Mapping."""

    tp_size: int = 1
    ep_size: int = 1

    def __post_init__(self) -> None:
        Mapping(self.tp_size, self.ep_size)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a build; see config.build.BuildConfig. max_seq_len None is as long as the model
    allows, kv_dtype None is the model's own element type."""

    max_batch_size: int = 32
    max_num_tokens: int = 512
    max_seq_len: int | None = None
    tokens_per_block: int = 64
    kv_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """How many texts set the activation scales of NVFP4."""

    num_samples: int = 128

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ConfigError(f"num_samples: expected at least 1, found {self.num_samples}.")


@dataclass(frozen=True, slots=True)
class DeploymentConfig:
    """Everything `beam-trt build` can be told apart from the model and the output folder."""

    precision: Precision
    experts_only: bool = False
    mapping: RankLayout = field(default_factory=RankLayout)
    runtime: RuntimeKind = RuntimeKind.NATIVE
    gpu: str | None = None
    build: Limits = field(default_factory=Limits)
    calibration: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        self.quant  # noqa: B018  raises where experts_only contradicts the precision
        if self.gpu is not None:
            Gpu.named(self.gpu)

    @property
    def quant(self) -> QuantConfig:
        return QuantConfig(self.precision, self.experts_only)

    def ranks(self, config: ModelConfig) -> Mapping:
        """Rank 0's mapping; ConfigError where the model cannot be split like this."""
        mapping = Mapping(self.mapping.tp_size, self.mapping.ep_size)
        mapping.validate(config)
        return mapping

    def for_model(self, config: ModelConfig) -> BuildConfig:
        """The build of one model. ConfigError where the model does not allow it."""
        default_kv = "float32" if self.precision is Precision.FP32 else "bfloat16"
        build = BuildConfig(
            max_seq_len=self.build.max_seq_len or config.max_position_embeddings,
            max_batch_size=self.build.max_batch_size,
            max_num_tokens=self.build.max_num_tokens,
            tokens_per_block=self.build.tokens_per_block,
            kv_dtype=self.build.kv_dtype or default_kv,
            gpu=self.gpu,
            runtime=self.runtime,
        )
        build.check_model(config)
        return build


def bundled_deployments() -> list[str]:
    """Names of the YAML files that ship with the package."""
    folder = resources.files("beam_trt.build_configs")
    return sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name[-5:] == ".yaml")


def load_deployment(path_or_name: str) -> DeploymentConfig:
    """Read a YAML file, or the bundled one of that name. ConfigError where there is neither."""
    names = bundled_deployments()
    if path_or_name in names:
        entry = resources.files("beam_trt.build_configs").joinpath(f"{path_or_name}.yaml")
        text = entry.read_text(encoding="utf-8")
        return parse_yaml(text, DeploymentConfig, f"build_configs/{path_or_name}.yaml")
    path = Path(path_or_name)
    if not path.is_file():
        close = difflib.get_close_matches(path_or_name, names, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise ConfigError(
            f"{path_or_name}: no such file, and no bundled configuration of that name.{hint} "
            f"Bundled: {', '.join(names)}."
        )
    return load_yaml(path, DeploymentConfig)
