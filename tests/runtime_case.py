"""Builds executors on fake sessions for tests, and collects what their sinks get."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fake_session import FakeSession, next_token

from beam_trt.config.build import BuildConfig
from beam_trt.config.mapping import Mapping
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.config.runtime import RuntimeConfig
from beam_trt.engine.manifest import EngineConfig
from beam_trt.runtime.executor import Executor
from beam_trt.runtime.request import Request, RequestOutput, SamplingParams

VOCAB_SIZE = 97
EOS = 1


def engine_config(sliding_window: int = 6, max_seq_len: int = 256) -> EngineConfig:
    """An engine that exists only as a configuration: one sliding, one full layer."""
    model = ModelConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        max_position_embeddings=max_seq_len,
        rms_norm_eps=1e-6,
        sliding_window=sliding_window,
        rope_theta=1e4,
        layer_types=("sliding_attention", "full_attention"),
        mlp_layer_types=("dense", "dense"),
        moe_intermediate_size=8,
        num_experts=2,
        num_experts_per_tok=1,
        n_group=1,
        topk_group=1,
        routed_scaling_factor=1.0,
        final_logit_softcapping=None,
        eos_token_ids=(EOS,),
    )
    return EngineConfig(
        engine_dir=Path("unused"),
        model=model,
        quant=QuantConfig(Precision.BF16),
        mapping=Mapping(),
        build=BuildConfig(max_seq_len=max_seq_len),
    )


def runtime_config(**changes: Any) -> RuntimeConfig:
    values: dict[str, Any] = {
        "max_seq_len": 256,
        "max_batch_size": 4,
        "max_num_tokens": 16,
        "tokens_per_block": 8,
        "num_full_blocks": 40,
        "num_sliding_blocks": 12,
    }
    return RuntimeConfig(**(values | changes))


@dataclass
class Collected:
    """What one request's sink got."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    outputs: list[RequestOutput] = field(default_factory=list)

    def __call__(self, output: RequestOutput) -> None:
        assert not self.is_ended, f"output after the last: {output}"
        self.outputs.append(output)
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs or ()

    @property
    def is_ended(self) -> bool:
        return bool(self.outputs) and self.outputs[-1].is_last

    @property
    def last(self) -> RequestOutput:
        assert self.is_ended, self.outputs
        return self.outputs[-1]


@dataclass
class Case:
    """An executor on a fake session, stepped by hand with its invariants checked."""

    executor: Executor
    session: FakeSession
    sinks: dict[str, Collected] = field(default_factory=dict)

    @classmethod
    def build(cls, sliding_window: int = 6, **runtime: Any) -> "Case":
        config = runtime_config(**runtime)
        session = FakeSession(
            VOCAB_SIZE, config.tokens_per_block, sliding_window, config.max_num_tokens
        )
        engine = engine_config(sliding_window, config.max_seq_len)
        return cls(Executor(session, engine, config), session)

    def submit(self, request_id: str, prompt: tuple[int, ...], **sampling: Any) -> Collected:
        sink = Collected()
        request = Request(request_id, prompt, SamplingParams(**sampling))
        self.executor.submit(request, sink)
        self.sinks[request_id] = sink
        return sink

    def step(self) -> list[RequestOutput]:
        outputs = self.executor.step()
        self.executor.check_integrity()
        return outputs

    def run(self, max_steps: int = 10_000) -> int:
        """Step until nothing is open; the number of steps."""
        for num_steps in range(max_steps):
            if not self.executor.num_open:
                return num_steps
            self.step()
        raise AssertionError(f"{self.executor.num_open} requests still open after {max_steps}")


def expected_tokens(
    prompt: tuple[int, ...], max_tokens: int, ignore_eos: bool = False
) -> list[int]:
    """What the scripted model answers to a prompt, whoever else is served."""
    known = list(prompt)
    while len(known) - len(prompt) < max_tokens:
        known.append(next_token(known, VOCAB_SIZE))
        if known[-1] == EOS and not ignore_eos:
            break
    return known[len(prompt) :]
