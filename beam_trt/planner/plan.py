"""One deployment, decided before it is paid for: does it fit, how much, how fast at best."""

from dataclasses import dataclass

from beam_trt.config.hardware import Gpu, gpus
from beam_trt.config.mapping import Mapping, possible_tp_sizes
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import QuantConfig
from beam_trt.errors import ConfigError
from beam_trt.planner.memory import MemoryPlan, memory_plan
from beam_trt.planner.roofline import Roofline, Step

TIGHT_SEQUENCES = 16
"""A deployment that holds fewer sequences than this at the asked context is called tight."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is asked about: a model in a format, spread over GPUs, at a context and concurrency.

    context: tokens of one sequence. concurrency: sequences in generation at once, None for as many
    as fit (at most 256). max_num_tokens: tokens of one step. kv_bytes: 2 for bf16, 1 for fp8.
    """

    config: ModelConfig
    quant: QuantConfig
    mapping: Mapping
    gpu: Gpu
    context: int
    concurrency: int | None = None
    max_num_tokens: int = 8192
    kv_bytes: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.context <= self.config.max_position_embeddings:
            raise ConfigError(
                f"context: expected within 1..max_position_embeddings "
                f"{self.config.max_position_embeddings}, found {self.context}."
            )
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(f"concurrency: expected at least 1, found {self.concurrency}.")


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. Times are floors in microseconds, rates are tokens a second of all GPUs."""

    deployment: Deployment
    memory: MemoryPlan
    max_concurrency: int
    concurrency: int
    decode_us: dict[str, float]
    prefill_us: dict[str, float]

    @property
    def is_tight(self) -> bool:
        return self.max_concurrency < TIGHT_SEQUENCES

    @property
    def max_context(self) -> int:
        """Longest single sequence, in tokens, that fits and that the model can do."""
        limit = self.deployment.config.max_position_embeddings
        return min(self.memory.max_context(), limit)

    @property
    def decode_tokens_per_s(self) -> float:
        return self.concurrency / sum(self.decode_us.values()) * 1e6

    @property
    def prefill_tokens_per_s(self) -> float:
        return self.prefill_tokens / sum(self.prefill_us.values()) * 1e6

    @property
    def prefill_tokens(self) -> int:
        return min(self.deployment.context, self.deployment.max_num_tokens)


def make_plan(deployment: Deployment) -> Plan:
    """Price `deployment`. ConfigError, naming the nearest that works, where it cannot be."""
    memory = _memory(deployment, deployment.mapping)
    most = memory.max_concurrency(deployment.context)
    if most < (deployment.concurrency or 1):
        raise ConfigError(_refusal(deployment, memory, most))
    concurrency = deployment.concurrency or min(most, 256)
    roofline = Roofline(
        deployment.config,
        deployment.quant,
        deployment.mapping,
        deployment.gpu,
        deployment.kv_bytes,
    )
    chunk = min(deployment.context, deployment.max_num_tokens)
    return Plan(
        deployment,
        memory,
        most,
        concurrency,
        decode_us=roofline.step_us(Step(concurrency, deployment.context)),
        prefill_us=roofline.step_us(Step(chunk, chunk, is_decode=False, num_logits=1)),
    )


def _memory(deployment: Deployment, mapping: Mapping, gpu: Gpu | None = None) -> MemoryPlan:
    return memory_plan(
        deployment.config,
        deployment.quant,
        mapping,
        gpu or deployment.gpu,
        max_num_tokens=deployment.max_num_tokens,
        max_batch_size=deployment.concurrency or 1,
        kv_bytes=deployment.kv_bytes,
    )


def _refusal(deployment: Deployment, memory: MemoryPlan, most: int) -> str:
    weights = sum(memory.weights.values()) / 1e9
    wanted = deployment.concurrency or 1
    need = wanted * memory.kv.sequence(deployment.context) / 1e9
    text = (
        f"plan: {deployment.mapping.tp_size} x {deployment.gpu.title} cannot hold this: "
        f"{weights:.1f} GB of weights leave {memory.free_for_kv / 1e9:.1f} GB a GPU for KV, and "
        f"{wanted} sequence(s) of {deployment.context} tokens need {need:.1f} GB"
    )
    if most:
        text += f"; {most} would fit"
    return f"{text}. {_nearest(deployment, wanted)}"


def _nearest(deployment: Deployment, wanted: int) -> str:
    for tp in possible_tp_sizes(deployment.config):
        if tp > deployment.mapping.tp_size and _fits(deployment, Mapping(tp_size=tp), wanted):
            return f"Nearest that fits: --tp {tp} on {deployment.gpu.name}."
    for gpu in sorted(gpus().values(), key=lambda gpu: gpu.memory_gb):
        if _fits(deployment, deployment.mapping, wanted, gpu):
            return f"Nearest that fits: --gpu {gpu.name} with the same --tp."
    return "Use a smaller precision, context or concurrency."


def _fits(deployment: Deployment, mapping: Mapping, wanted: int, gpu: Gpu | None = None) -> bool:
    try:
        memory = _memory(deployment, mapping, gpu)
    except ConfigError:  # this split is impossible, for instance an NVFP4 shard off its blocks
        return False
    return memory.max_concurrency(deployment.context) >= wanted
