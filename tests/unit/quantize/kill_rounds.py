"""Run as a program: kill -9 a quantize run at random moments until it is through, again and again.

    python kill_rounds.py SOURCE FOLDER ROUNDS SEED

A round is one kill. Prints one JSON object: kills, finished runs, files and tensors bytes that
differ from an undisturbed run's, shards that were kept over a kill, and those made twice. Runs are
forks of this process, which has imported everything, so that most kills hit work and not imports.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.quantize import stream
from beam_trt.quantize.modelopt_functions import modelopt_functions

SAMPLES = [[(7 * i + n) % 256 for i in range(length)] for n, length in enumerate((90, 20, 130))]
SHARD_BYTES = 30_000


def start(source: Path, out: Path) -> int:
    child = os.fork()
    if child == 0:
        stream.run(source, out, QuantConfig(Precision.NVFP4), SAMPLES, max_shard_bytes=SHARD_BYTES)
        os._exit(0)
    return child


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def journaled(out: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of each shard that the hidden folder's journal calls finished."""
    work = out.with_name(f".{out.name}.partial")
    journal, result = work / "journal.jsonl", work / "result"
    found = {}
    for line in journal.read_text().splitlines(keepends=True) if journal.exists() else []:
        if line.endswith("\n") and json.loads(line)["kind"] == "shard":
            path = result / json.loads(line)["file"]
            if path.exists():
                found[path.name] = identity(path)
    return found


def identity(path: Path) -> tuple[int, int]:
    return path.stat().st_ino, path.stat().st_mtime_ns


def main(source: Path, folder: Path, rounds: int, seed: int) -> dict[str, int]:
    begun = time.monotonic()
    os.waitpid(start(source, folder / "undisturbed"), 0)
    duration = time.monotonic() - begun
    expected = contents(folder / "undisturbed")
    generator = random.Random(seed)
    out = folder / "out"
    tally = dict.fromkeys(("kills", "finished", "differing", "kept", "made_twice"), 0)
    tally["shards"] = sum(name.endswith(".safetensors") for name in expected)
    kept: dict[str, tuple[int, int]] = {}
    while tally["kills"] < rounds or kept:
        child = start(source, out)
        if tally["kills"] < rounds:
            time.sleep(generator.uniform(0, 0.7 * duration))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            tally["kills"] += 1
        else:
            assert os.WEXITSTATUS(status) == 0, f"{status=}"
        if not out.exists():
            assert os.WIFSIGNALED(status), "a run ended well without a result"
            now = journaled(out)
            tally["made_twice"] += sum(now.get(name) != before for name, before in kept.items())
            kept = now
            continue
        tally["kept"] += len(kept)
        tally["made_twice"] += sum(identity(out / name) != at for name, at in kept.items())
        tally["differing"] += contents(out) != expected
        tally["finished"] += 1
        kept = {}
        shutil.rmtree(out)
    return tally


if __name__ == "__main__":
    torch.set_num_threads(1)
    modelopt_functions()
    print(
        json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
    )
