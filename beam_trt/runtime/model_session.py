"""One rank of the model: its weights, its KV pools, and on rank 0 the sampler.

Knows nothing about processes; the communicator it is given does.
"""

from collections.abc import Sequence

import torch

from beam_trt.config.mapping import Mapping
from beam_trt.config.runtime import RuntimeConfig
from beam_trt.engine.manifest import EngineConfig
from beam_trt.model.batch import KvIndex, StepBatch
from beam_trt.model.beam import BeamModel
from beam_trt.model.communicator import Communicator
from beam_trt.model.kv import KvPools
from beam_trt.model.weights import load_rank
from beam_trt.runtime.pool_sizes import PoolSizes
from beam_trt.runtime.sampler import sample
from beam_trt.runtime.session import SampledToken, SamplingRow
from beam_trt.runtime.step_input import StepInput

_KV_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class ModelSession:
    """A `Session` on this process's rank. Raises EngineError when its weights are damaged."""

    def __init__(
        self, engine: EngineConfig, runtime: RuntimeConfig, communicator: Communicator
    ) -> None:
        mapping: Mapping = engine.mapping.with_rank(communicator.rank)
        sizes = PoolSizes.resolve(engine.model, mapping, runtime)
        weights = load_rank(engine.engine_dir, mapping.rank)
        self._model = BeamModel(engine.model, engine.quant, mapping, weights, communicator)
        self._kv_pools = KvPools.allocate(
            engine.model,
            mapping,
            sizes.num_full_blocks,
            sizes.num_sliding_blocks,
            runtime.tokens_per_block,
            _KV_DTYPES[runtime.kv_dtype],
        )

    def forward(self, step: StepInput) -> torch.Tensor:
        """Logits [num_logits, vocab_size] fp32 of the step, the same on every rank."""
        with torch.inference_mode():
            return self._model.forward(to_batch(step), self._kv_pools)

    def run(self, step: StepInput, rows: Sequence[SamplingRow]) -> list[SampledToken]:
        logits = self.forward(step)
        with torch.inference_mode():
            return sample(logits, rows)

    def check(self) -> None:
        """Nothing of this process can be gone without it."""

    def close(self) -> None:
        """Weights and pools are freed with the object."""


def to_batch(step: StepInput) -> StepBatch:
    """Tensors over the same memory."""
    return StepBatch(
        token_ids=torch.from_numpy(step.token_ids),
        positions=torch.from_numpy(step.positions),
        query_starts=torch.from_numpy(step.query_starts),
        context_lens=torch.from_numpy(step.context_lens),
        full=KvIndex(torch.from_numpy(step.full_table), torch.from_numpy(step.full_slots)),
        sliding=KvIndex(torch.from_numpy(step.sliding_table), torch.from_numpy(step.sliding_slots)),
        logit_rows=torch.from_numpy(step.logit_rows),
    )
