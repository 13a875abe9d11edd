"""NVFP4 byte by byte against ModelOpt's own quantize and export of the whole model."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import small_config, write_checkpoint
from tensors import as_bytes, read_all

from beam_trt import quantize
from beam_trt.assets import calibration_texts
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.quantize.report import Report
from beam_trt.quantize.texts import tokenize

JOBS = ["dense and moe", "experts only", "unseen experts", "fp32 source", "beam-tiny"]


def random_ids(seed: int, lengths: list[int], vocab: int = 256) -> list[list[int]]:
    generator = random.Random(seed)
    return [[generator.randrange(vocab) for _ in range(n)] for n in lengths]


@pytest.fixture(scope="module")
def jobs(
    tmp_path_factory: pytest.TempPathFactory, source: Path, beam_tiny: Path
) -> dict[str, dict[str, Any]]:
    """Each job's checkpoint and samples, already exported by ModelOpt to `out`."""
    folder = tmp_path_factory.mktemp("modelopt")
    odd = small_config(
        num_hidden_layers=7,
        hidden_size=48,
        num_experts=30,
        n_group=3,
        topk_group=1,
        num_experts_per_tok=2,
        sliding_window=5,
        moe_intermediate_size=16,
        num_key_value_heads=1,
    )
    write_checkpoint(folder / "odd", odd, seed=1, dtype=torch.bfloat16)
    write_checkpoint(folder / "fp32", small_config(num_hidden_layers=4), seed=2)
    window = random_ids(0, [40, 130, 1, 65])
    made = {
        "dense and moe": (source, window, False),
        "experts only": (source, window, True),
        "unseen experts": (folder / "odd", random_ids(1, [3, 4]), False),
        "fp32 source": (folder / "fp32", random_ids(2, [70]), False),
        "beam-tiny": (beam_tiny, tokenize(beam_tiny, calibration_texts()[::97], 3), False),
    }
    listed = {
        name: {
            "checkpoint": str(checkpoint),
            "samples": samples,
            "experts_only": experts_only,
            "out": str(folder / f"modelopt {name}"),
        }
        for name, (checkpoint, samples, experts_only) in made.items()
    }
    assert list(listed) == JOBS
    (folder / "jobs.json").write_text(json.dumps(list(listed.values())))
    script = Path(__file__).with_name("modelopt_export.py")
    command = [sys.executable, str(script), str(folder / "jobs.json")]
    # The same threads as here: a matrix product's last bit may depend on how it is split.
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    done = subprocess.run(
        command, env=os.environ | threads, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return listed


def run_ours(job: dict[str, Any], out: Path) -> Report:
    quant = QuantConfig(Precision.NVFP4, job["experts_only"])
    return quantize.run(Path(job["checkpoint"]), out, quant, job["samples"])


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_every_byte_is_modelopts(
    jobs: dict[str, dict[str, Any]], name: str, tmp_path: Path
) -> None:
    theirs = Path(jobs[name]["out"])
    report = run_ours(jobs[name], tmp_path / "ours")
    ours, expected = read_all(tmp_path / "ours"), read_all(theirs)
    assert ours.keys() == expected.keys()
    for tensor_name, tensor in expected.items():
        found = ours[tensor_name]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape), tensor_name
        assert as_bytes(found) == as_bytes(tensor), tensor_name
    for file in ("config.json", "hf_quant_config.json"):
        found = json.loads((tmp_path / "ours" / file).read_text())
        assert found == json.loads((theirs / file).read_text()), file
    if name == "unseen experts":
        assert min(min(layer.expert_tokens, default=9) for layer in report.layers) == 0
        assert any("saw no calibration token" in warning for warning in report.warnings)
