"""The whole stage: what it writes, what it refuses, and what is left when it is stopped."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import small_config, write_checkpoint
from safetensors.torch import save_file
from tensors import as_bytes, read_all, rewrite

from beam_trt import quantize
from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.checkpoint.validate import validate
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.errors import CheckpointError, ConfigError, OutputError
from beam_trt.quantize.stream import Progress

NVFP4, FP8, BF16 = (QuantConfig(p) for p in (Precision.NVFP4, Precision.FP8, Precision.BF16))


def same_tensors(a: Path, b: Path) -> bool:
    first, second = read_all(a), read_all(b)
    return first.keys() == second.keys() and all(
        as_bytes(first[name]) == as_bytes(second[name]) for name in first
    )


def packed_copy(source: Path, folder: Path) -> Path:
    """The same weights with each layer's experts in 3-D tensors."""
    folder.mkdir()
    tensors = read_all(source)
    for layer in (3, 4):
        at = f"model.layers.{layer}.mlp.experts."
        parts = {
            proj: [tensors.pop(f"{at}{e}.{proj}.weight") for e in range(16)]
            for proj in ("gate_proj", "up_proj", "down_proj")
        }
        pairs = zip(parts["gate_proj"], parts["up_proj"], strict=True)
        tensors[f"{at}gate_up_proj"] = torch.stack([torch.cat(pair) for pair in pairs])
        tensors[f"{at}down_proj"] = torch.stack(parts["down_proj"])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(source / "config.json", folder)
    return folder


@pytest.mark.parametrize("quant", [NVFP4, FP8, BF16], ids=lambda q: q.precision)
def test_packed_experts_give_the_same_output(
    source: Path, samples: list[list[int]], tmp_path: Path, quant: QuantConfig
) -> None:
    quantize.run(source, tmp_path / "a", quant, samples)
    quantize.run(packed_copy(source, tmp_path / "packed"), tmp_path / "b", quant, samples)
    assert same_tensors(tmp_path / "a", tmp_path / "b")


def test_bf16_copies_bf16(source: Path, tmp_path: Path) -> None:
    report = quantize.run(source, tmp_path / "out", BF16)
    assert same_tensors(source, tmp_path / "out")
    assert report.relative_error is None
    before = json.loads((source / "config.json").read_text())
    assert json.loads((tmp_path / "out/config.json").read_text()) == before


def test_bf16_rounds_fp32_but_not_the_router(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "fp32", small_config(num_hidden_layers=4))
    quantize.run(tmp_path / "fp32", tmp_path / "out", BF16)
    before, after = read_all(tmp_path / "fp32"), read_all(tmp_path / "out")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        expected = tensor if ".mlp.gate." in name else tensor.bfloat16()
        assert as_bytes(after[name]) == as_bytes(expected), name
    assert CheckpointIndex.open(tmp_path / "out").precision is Precision.BF16


@pytest.mark.parametrize("quant", [NVFP4, FP8], ids=lambda q: q.precision)
def test_shard_size_changes_files_not_tensors(
    source: Path, samples: list[list[int]], tmp_path: Path, quant: QuantConfig
) -> None:
    quantize.run(source, tmp_path / "one", quant, samples)
    quantize.run(source, tmp_path / "many", quant, samples, max_shard_bytes=100_000)
    one, many = (CheckpointIndex.open(tmp_path / name) for name in ("one", "many"))
    assert len(one.files) == 1
    assert len(many.files) >= 5
    assert all(file.stat().st_size < 100_000 + 64_000 for file in many.files)
    assert one.identity() == many.identity()
    assert same_tensors(tmp_path / "one", tmp_path / "many")
    validate(many)
    assert many.quant == quant


def test_what_stays_unquantized(source: Path, samples: list[list[int]], tmp_path: Path) -> None:
    quantize.run(source, tmp_path / "out", QuantConfig(Precision.NVFP4, True), samples)
    before, after = read_all(source), read_all(tmp_path / "out")
    for name, tensor in before.items():
        if ".experts." not in name:
            assert as_bytes(after[name]) == as_bytes(tensor), name
    assert {after[n].dtype for n in after if n.endswith("experts.0.up_proj.weight")} == {
        torch.uint8
    }
    assert CheckpointIndex.open(tmp_path / "out").quant.experts_only


def test_sidecars_travel(beam_tiny: Path, tmp_path: Path) -> None:
    report = quantize.run(beam_tiny, tmp_path / "out", FP8)
    carried = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
    for name in [*carried, "generation_config.json"]:
        assert (tmp_path / "out" / name).read_bytes() == (beam_tiny / name).read_bytes()
        assert name in report.sidecars
    assert not report.warnings


def test_report(source: Path, samples: list[list[int]], tmp_path: Path) -> None:
    seen: list[Progress] = []
    report = quantize.run(source, tmp_path / "out", NVFP4, samples, progress=seen.append)
    index = CheckpointIndex.open(tmp_path / "out")
    assert report.total_before == CheckpointIndex.open(source).num_bytes
    assert report.total_after == index.num_bytes
    assert report.bytes_before.keys() == report.bytes_after.keys()
    # 4 bits and 1/16 byte an element against 16 bits, and two F32 scalars a matrix.
    experts = 2 * 16 * 3
    assert report.bytes_after["experts"] == report.bytes_before["experts"] * 9 // 32 + experts * 8
    assert report.bytes_after["router"] == report.bytes_before["router"]
    assert report.relative_error is not None
    assert 0.09 < report.relative_error < 0.1
    assert [layer.layer_idx for layer in report.layers] == list(range(5))
    assert report.num_calibration_tokens == sum(map(len, samples))
    assert any("has no tokenizer.json" in warning for warning in report.warnings)
    assert json.loads(json.dumps(report.to_dict()))["total_after"] == report.total_after
    assert seen[0].done_bytes == 0
    assert seen[-1].done_bytes == seen[-1].total_bytes == report.total_before
    assert seen[-1].num_tensors == seen[-1].total_tensors == len(index.tensors)
    assert all(a.done_bytes <= b.done_bytes for a, b in itertools.pairwise(seen))


def test_text_goes_through_the_checkpoints_tokenizer(beam_tiny: Path, tmp_path: Path) -> None:
    texts = ["The quick brown fox.", "", "def f(x):\n    return x"]
    report = quantize.run(beam_tiny, tmp_path / "out", NVFP4, texts)
    assert report.num_samples == 2
    assert 5 < report.num_calibration_tokens < 50


def test_all_zero_matrices(tmp_path: Path, samples: list[list[int]]) -> None:
    write_checkpoint(tmp_path / "src", small_config(num_hidden_layers=4), dtype=torch.bfloat16)

    def zero(tensors: dict[str, torch.Tensor]) -> None:
        for expert in range(16):
            tensors[f"model.layers.3.mlp.experts.{expert}.up_proj.weight"].zero_()
            tensors[f"model.layers.3.mlp.experts.{expert}.down_proj.weight"].zero_()

    rewrite(tmp_path / "src", zero)
    report = quantize.run(tmp_path / "src", tmp_path / "out", NVFP4, samples)
    after = read_all(tmp_path / "out")
    for name, tensor in after.items():
        if "scale" in name:
            assert bool((tensor.float() > 0).all() and tensor.float().isfinite().all()), name
    assert any("the input of expert_out was all zeros" in note for note in report.warnings)


def refused(kind: type[Exception], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(kind) as caught:
        quantize.run(*args, **kwargs)
    out = Path(args[1])
    assert not out.exists()
    assert not out.with_name(f".{out.name}.partial").exists()
    return str(caught.value)


@pytest.mark.parametrize("calibration", [None, [], [[]], [""], ["", " "[:0]]])
def test_nvfp4_without_text(beam_tiny: Path, tmp_path: Path, calibration: Any) -> None:
    text = refused(ConfigError, beam_tiny, tmp_path / "out", NVFP4, calibration)
    assert "calibration: nvfp4 needs text" in text
    assert "--calibration FILE" in text


def test_text_without_a_tokenizer(source: Path, tmp_path: Path) -> None:
    text = refused(CheckpointError, source, tmp_path / "out", NVFP4, ["Hello"])
    assert f"{source}: expected tokenizer.json" in text


def test_tokenizer_of_another_model(source: Path, tmp_path: Path) -> None:
    text = refused(CheckpointError, source, tmp_path / "out", NVFP4, [[1, 256]])
    assert "gives token 256, expected ids below vocab_size 256" in text


def test_no_samples(source: Path, tmp_path: Path) -> None:
    text = refused(ConfigError, source, tmp_path / "out", NVFP4, [[1]], num_samples=0)
    assert "samples: expected at least 1" in text


@pytest.mark.parametrize("first", [NVFP4, FP8], ids=lambda q: q.precision)
def test_already_quantized(
    source: Path, samples: list[list[int]], tmp_path: Path, first: QuantConfig
) -> None:
    quantize.run(source, tmp_path / "first", first, samples)
    text = refused(CheckpointError, tmp_path / "first", tmp_path / "out", FP8)
    assert f"found one already quantized to {first.precision}" in text
    assert "beam-trt build" in text


def test_fp32_is_no_format_to_write(source: Path, tmp_path: Path) -> None:
    text = refused(ConfigError, source, tmp_path / "out", QuantConfig(Precision.FP32))
    assert "nvfp4, fp8 or bf16, found fp32" in text


def test_columns_that_do_not_fit_blocks(tmp_path: Path) -> None:
    config = small_config(num_hidden_layers=4, moe_intermediate_size=24)
    write_checkpoint(tmp_path / "src", config, dtype=torch.bfloat16)
    text = refused(ConfigError, tmp_path / "src", tmp_path / "out", NVFP4, [[1]])
    assert "mlp.experts.0.down_proj: NVFP4 needs input columns in multiples of 16" in text


@pytest.mark.parametrize("quant", [NVFP4, FP8], ids=lambda q: q.precision)
def test_weights_that_are_not_finite(tmp_path: Path, quant: QuantConfig) -> None:
    write_checkpoint(tmp_path / "src", small_config(num_hidden_layers=4), dtype=torch.bfloat16)
    report = quantize.run(tmp_path / "src", tmp_path / "whole", NVFP4, [[1]])
    # An expert without a token: its weights are seen by the quantizer alone.
    unseen = report.layers[3].expert_tokens.index(0)
    name = f"model.layers.3.mlp.experts.{unseen}.down_proj.weight"

    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name][1, 2] = float("inf")

    rewrite(tmp_path / "src", damage)
    with pytest.raises(CheckpointError) as caught:
        quantize.run(tmp_path / "src", tmp_path / "out", quant, [[1]])
    text = str(caught.value)
    assert not (tmp_path / "out").exists()
    assert f"{name}: expected finite weights, found NaN or infinity" in text


def test_missing_tensor_is_seen_before_any_work(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "src", small_config(num_hidden_layers=4), dtype=torch.bfloat16)
    rewrite(tmp_path / "src", lambda tensors: tensors.pop("model.norm.weight"))
    steps: list[Progress] = []
    text = refused(CheckpointError, tmp_path / "src", tmp_path / "out", FP8, progress=steps.append)
    assert "missing tensor model.norm.weight" in text
    assert steps == []


def test_output_that_is_not_empty(source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(OutputError, match="expected an empty or new folder"):
        quantize.run(source, tmp_path, FP8)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted tmpfs of 500 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_before_the_first_shard(source: Path, small_disk: Path) -> None:
    text = refused(OutputError, source, small_disk / "out", FP8)
    assert "the disk is full" in text
    assert "Free some space or give an output folder on another disk" in text
    assert list(small_disk.iterdir()) == []


def test_interrupt_before_the_first_shard_leaves_nothing(source: Path, tmp_path: Path) -> None:
    def stop(now: Progress) -> None:
        if now.num_tensors > 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize.run(source, tmp_path / "out", FP8, progress=stop)
    assert list(tmp_path.iterdir()) == []


KILLED = """
import sys, time
from pathlib import Path
from beam_trt import quantize
from beam_trt.config.quant import Precision, QuantConfig

def progress(now):
    if now.num_tensors > 50:
        print("half", flush=True)
        time.sleep(60)

quantize.run(Path(sys.argv[1]), Path(sys.argv[2]), QuantConfig(Precision.FP8), progress=progress)
"""


def test_kill_leaves_nothing_that_looks_complete_and_a_rerun_works(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(source), str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"half\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not out.exists()
    (left,) = tmp_path.iterdir()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        CheckpointIndex.open(left)
    quantize.run(source, out, FP8)
    validate(CheckpointIndex.open(out))
    assert list(tmp_path.iterdir()) == [out]
