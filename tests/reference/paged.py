"""Drives BeamModel as a runtime would, with its own small block accounting: scattered physical
blocks, sliding blocks freed behind the window, freed and unused memory full of NaN."""

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from reference.engine_weights import engine_weights
from transformers import BeamForCausalLM

from beam_trt.config.mapping import Mapping
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.model.batch import KvIndex, StepBatch
from beam_trt.model.beam import BeamModel
from beam_trt.model.communicator import SingleRank
from beam_trt.model.kv import KvPools


class ThreadRank:
    """One rank's communicator among threads of this process."""

    def __init__(self, rank: int, shared: "list[torch.Tensor | None]", meet: threading.Barrier):
        self.rank, self.size = rank, len(shared)
        self._shared, self._meet = shared, meet

    def _gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        self._shared[self.rank] = tensor
        self._meet.wait(60)
        everyone = [t.clone() for t in self._shared if t is not None]
        self._meet.wait(60)
        return everyone

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        assert tensor.dtype == torch.float32
        return torch.stack(self._gather(tensor)).sum(0)

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._gather(tensor), dim=-1)


@dataclass
class _Request:
    length: int = 0
    full: list[int] = field(default_factory=list)
    sliding: list[int] = field(default_factory=list)


class PagedModel:
    """All ranks of one model with their KV. `step` runs tokens of several requests at once."""

    def __init__(
        self,
        model: BeamForCausalLM,
        precision: Precision = Precision.FP32,
        tp_size: int = 1,
        ep_size: int = 1,
        tokens_per_block: int = 64,
        num_blocks: int = 64,
        seed: int = 0,
    ) -> None:
        self.config = ModelConfig.from_hf(model.config.to_dict())
        self.tokens_per_block = tokens_per_block
        quant = QuantConfig(precision)
        shared: list[torch.Tensor | None] = [None] * tp_size
        meet = threading.Barrier(tp_size)
        mappings = [Mapping(tp_size, ep_size, rank) for rank in range(tp_size)]
        self.ranks = [
            BeamModel(
                self.config,
                quant,
                mapping,
                engine_weights(model, mapping, quant),
                SingleRank() if tp_size == 1 else ThreadRank(mapping.rank, shared, meet),
            )
            for mapping in mappings
        ]
        self.pools = [
            KvPools.allocate(
                self.config, m, num_blocks, num_blocks, tokens_per_block, self.ranks[0].dtype
            )
            for m in mappings
        ]
        for pool in self.pools:
            for layer in pool.layers:
                layer.fill_(torch.nan)
        order = random.Random(seed)
        self._free_full = order.sample(range(num_blocks), num_blocks)
        self._free_sliding = order.sample(range(num_blocks), num_blocks)
        self._requests: dict[str, _Request] = {}
        self.num_poisoned = 0

    def step(self, work: Sequence[tuple[str, Sequence[int]]]) -> dict[str, torch.Tensor]:
        """Run the next tokens of each named request; logits [tokens, vocab] of all of them."""
        batch = self.prepare(work)
        if len(self.ranks) == 1:
            outputs = [self.ranks[0].forward(batch, self.pools[0])]
        else:
            with ThreadPoolExecutor(len(self.ranks)) as threads:
                jobs = [
                    threads.submit(rank.forward, batch, pool)
                    for rank, pool in zip(self.ranks, self.pools, strict=True)
                ]
                outputs = [job.result() for job in jobs]
        assert all(torch.equal(out, outputs[0]) for out in outputs), "ranks disagree"
        self._free_behind_window()
        split = outputs[0].split([len(tokens) for _, tokens in work])
        return {name: part for (name, _), part in zip(work, split, strict=True)}

    def prepare(self, work: Sequence[tuple[str, Sequence[int]]]) -> StepBatch:
        """Account for the tokens and make the step's tensors."""
        tokens: list[int] = []
        positions: list[int] = []
        starts = [0]
        for name, new in work:
            request = self._requests.setdefault(name, _Request())
            positions += range(request.length, request.length + len(new))
            tokens += new
            request.length += len(new)
            starts.append(len(tokens))
            while len(request.full) * self.tokens_per_block < request.length:
                request.full.append(self._free_full.pop())
                request.sliding.append(self._free_sliding.pop())
        requests = [self._requests[name] for name, _ in work]
        return StepBatch(
            token_ids=torch.tensor(tokens),
            positions=torch.tensor(positions),
            query_starts=torch.tensor(starts, dtype=torch.int32),
            context_lens=torch.tensor([r.length for r in requests], dtype=torch.int32),
            full=self._index([r.full for r in requests], positions, starts),
            sliding=self._index([r.sliding for r in requests], positions, starts),
            logit_rows=torch.arange(len(tokens)),
        )

    def _index(self, tables: list[list[int]], positions: list[int], starts: list[int]) -> KvIndex:
        width = max(map(len, tables))
        slots = []
        for table, start, end in zip(tables, starts, starts[1:], strict=False):
            for position in positions[start:end]:
                block, offset = divmod(position, self.tokens_per_block)
                assert table[block] >= 0
                slots.append(table[block] * self.tokens_per_block + offset)
        padded = [table + [-1] * (width - len(table)) for table in tables]
        return KvIndex(torch.tensor(padded, dtype=torch.int32), torch.tensor(slots))

    def _free_behind_window(self) -> None:
        for request in self._requests.values():
            oldest_seen = request.length - self.config.sliding_window + 1
            for i, block in enumerate(request.sliding):
                if block >= 0 and (i + 1) * self.tokens_per_block <= oldest_seen:
                    self._poison(block)
                    self._free_sliding.insert(0, block)
                    request.sliding[i] = -1

    def _poison(self, block: int) -> None:
        self.num_poisoned += 1
        for pool in self.pools:
            for layer_idx, layer in enumerate(pool.layers):
                if not self.config.is_full(layer_idx):
                    layer[block] = torch.nan
