"""An engine's ranks as threads of this process, for checking numbers. Not for serving: one
sequence at a time, every position's logits, no KV kept between calls."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from beam_trt.engine.manifest import EngineConfig
from beam_trt.model.batch import KvIndex, StepBatch
from beam_trt.model.beam import BeamModel
from beam_trt.model.communicator import Communicator, SingleRank
from beam_trt.model.kv import KvPools
from beam_trt.model.weights import load_rank

T = TypeVar("T")


class _Meeting:
    """Where the threads of one engine leave their tensors for each other."""

    def __init__(self, size: int) -> None:
        self.tensors: list[torch.Tensor | None] = [None] * size
        self.barrier = threading.Barrier(size)


class ThreadCommunicator:
    """Collectives over threads. Sums in rank order, so every rank gets the same bits."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank = rank
        self._meeting = meeting

    @property
    def size(self) -> int:
        return len(self._meeting.tensors)

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._exchange(tensor, lambda all_ranks: torch.stack(all_ranks).sum(0))

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._exchange(tensor, lambda all_ranks: torch.cat(all_ranks, dim=-1))

    def _exchange(
        self, tensor: torch.Tensor, combine: Callable[[list[torch.Tensor]], torch.Tensor]
    ) -> torch.Tensor:
        self._meeting.tensors[self.rank] = tensor
        self._meeting.barrier.wait()
        combined = combine([t for t in self._meeting.tensors if t is not None])
        # Nobody may overwrite a tensor that another rank still reads.
        self._meeting.barrier.wait()
        return combined


class ThreadRanks:
    """All ranks of one engine, weights mapped. Peak memory: what the engine's layers touch, and one
    sequence's KV and logits on every rank. Close it, or use it as a context manager."""

    def __init__(self, engine: EngineConfig) -> None:
        self.engine = engine
        size = engine.mapping.tp_size
        self._meeting = _Meeting(size)
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="rank")
        self._models = [self._open(rank) for rank in range(size)]

    def __enter__(self) -> "ThreadRanks":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._pool.shutdown()

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """[num_tokens, vocab_size] fp32: row i predicts token i + 1, softcap applied. One context
        phase over the whole sequence, which may not be longer than the engine's max_seq_len."""
        batch = _one_sequence(token_ids, self.engine.build.tokens_per_block)
        futures = [
            self._pool.submit(self._forward, rank, batch) for rank in range(len(self._models))
        ]
        errors = [error for future in futures if (error := future.exception())]
        # A rank that fails breaks the barrier for the others: theirs is not the error to show.
        first = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)]
        for error in (*first, *errors):
            raise error
        return futures[0].result()

    def _open(self, rank: int) -> BeamModel:
        engine = self.engine
        size = engine.mapping.tp_size
        communicator: Communicator = (
            SingleRank() if size == 1 else ThreadCommunicator(rank, self._meeting)
        )
        weights = load_rank(engine.engine_dir, rank)
        mapping = engine.mapping.with_rank(rank)
        return BeamModel(engine.model, engine.quant, mapping, weights, communicator)

    def _forward(self, rank: int, batch: StepBatch) -> torch.Tensor:
        engine = self.engine
        num_blocks = batch.full.block_table.shape[1]
        kv = KvPools.allocate(
            engine.model,
            engine.mapping.with_rank(rank),
            num_full_blocks=num_blocks,
            num_sliding_blocks=num_blocks,
            tokens_per_block=engine.build.tokens_per_block,
            dtype=getattr(torch, engine.build.kv_dtype),
        )
        try:
            with torch.no_grad():
                return self._models[rank].forward(batch, kv)
        except BaseException:
            self._meeting.barrier.abort()
            raise


def _one_sequence(token_ids: list[int], tokens_per_block: int) -> StepBatch:
    """A context phase of one request whose blocks are 0, 1, 2, ... in both lifetimes."""
    count = len(token_ids)
    num_blocks = -(-count // tokens_per_block)
    index = KvIndex(
        block_table=torch.arange(num_blocks, dtype=torch.int32).reshape(1, -1),
        slots=torch.arange(count),
    )
    return StepBatch(
        token_ids=torch.tensor(token_ids, dtype=torch.int64),
        positions=torch.arange(count),
        query_starts=torch.tensor([0, count], dtype=torch.int32),
        context_lens=torch.tensor([count], dtype=torch.int32),
        full=index,
        sliding=index,
        logit_rows=torch.arange(count),
    )
