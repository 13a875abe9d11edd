"""Worker processes that write packed rows into a folder (memory-backed where it can be), and the
reader that takes them in a fixed order, so a seed gives one data stream whatever the timing."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from .packing import DocumentSource, rows

ROWS_PER_SHARD = 64
_MAX_AHEAD = 64  # shards a worker may be ahead of the reader, in its own count


def _write(
    folder: Path, tokenizer: Path, prose: Path, seed: int, worker: int, workers: int
) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    encoder, text = Tokenizer.from_file(str(tokenizer)), np.load(prose)
    source = iter(DocumentSource(encoder, text, seed * 1000 + worker))
    index, reader = worker, os.getppid()
    while True:
        while len(list(folder.glob(f"w{worker:02d}-*.npy"))) >= _MAX_AHEAD:
            time.sleep(0.05)
            if os.getppid() != reader:  # the reader was killed
                return
        staged = folder / f"staged-{worker:02d}"
        with staged.open("wb") as file:
            np.save(file, rows(source, ROWS_PER_SHARD))
        staged.rename(folder / f"w{worker:02d}-{index:06d}.npy")
        index += workers


def start(
    folder: Path, tokenizer: Path, prose: Path, seed: int, workers: int
) -> list[multiprocessing.Process]:
    """Start `workers` daemon processes that fill `folder`; start them before CUDA is used."""
    folder.mkdir(parents=True, exist_ok=True)
    started = []
    for worker in range(workers):
        process = multiprocessing.Process(
            target=_write, args=(folder, tokenizer, prose, seed, worker, workers), daemon=True
        )
        process.start()
        started.append(process)
    return started


def read(folder: Path, workers: int) -> Iterator[npt.NDArray[Any]]:
    """[64, 1024] uint16 shards in order; waits for a slow worker, deletes what was read."""
    index = 0
    while True:
        path = folder / f"w{index % workers:02d}-{index:06d}.npy"
        while not path.exists():
            time.sleep(0.01)
        shard = np.load(path)
        path.unlink()
        index += 1
        yield shard
