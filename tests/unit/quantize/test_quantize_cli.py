"""`beam-trt quantize` as a user runs it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.cli.main import main
from beam_trt.config.quant import Precision


def invoke(*args: str | Path) -> Any:
    return CliRunner().invoke(main, ["quantize", *map(str, args)])


def test_table(source: Path, tmp_path: Path) -> None:
    result = invoke(source, "-o", tmp_path / "out", "--precision", "fp8")
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    for part in ("experts", "attention", "total", "before MB", "ratio", "relative error"):
        assert part in result.stderr
    assert "warning:" in result.stderr
    assert "has no tokenizer.json" in result.stderr
    assert CheckpointIndex.open(tmp_path / "out").precision is Precision.FP8


def test_json_and_bundled_texts(beam_tiny: Path, tmp_path: Path) -> None:
    result = invoke(
        beam_tiny, "-o", tmp_path / "out", "--precision", "nvfp4", "--samples", "2", "--json"
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["precision"] == "nvfp4"
    assert report["num_samples"] == 2
    assert report["total_after"] < report["total_before"] / 2
    assert len(report["layers"]) == CheckpointIndex.open(beam_tiny).config.num_hidden_layers
    assert CheckpointIndex.open(tmp_path / "out").num_bytes == report["total_after"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("texts.txt", "First text,\ntwo lines.\n\n\n\nSecond text.\n"),
        ("texts.jsonl", '{"text": "First text"}\n\n"Second text"\n'),
    ],
)
def test_calibration_file(beam_tiny: Path, tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    out = ["-o", tmp_path / "out", "--precision", "nvfp4", "--json"]
    result = invoke(beam_tiny, *out, "--calibration", tmp_path / name)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["num_samples"] == 2


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("none.txt", None, "cannot be read as UTF-8 text"),
        ("empty.txt", b"\n\n \n", "expected calibration text, found none"),
        ("latin.txt", b"\xe9", "cannot be read as UTF-8 text"),
        ("bad.jsonl", b'{"text": "a"}\nplain', "line 2: expected one JSON value a line"),
        ("keys.jsonl", b'{"txt": "a"}', 'line 1: expected a string or {"text": ...}, found dict'),
    ],
)
def test_calibration_file_that_is_none(
    beam_tiny: Path, tmp_path: Path, name: str, content: bytes | None, expected: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    out = ["-o", tmp_path / "out", "--precision", "nvfp4"]
    result = invoke(beam_tiny, *out, "--calibration", tmp_path / name)
    assert result.exit_code == 1
    assert f"{tmp_path / name}" in result.stderr
    assert expected in result.stderr
    assert not (tmp_path / "out").exists()


def test_shard_size(source: Path, tmp_path: Path) -> None:
    out = ["-o", tmp_path / "out", "--precision", "bf16"]
    assert invoke(source, *out, "--max-shard-size", "0.5 mb").exit_code == 0
    sizes = [file.stat().st_size for file in CheckpointIndex.open(tmp_path / "out").files]
    assert len(sizes) >= 3
    header = 50_000
    assert max(sizes) <= 500_000 + header


@pytest.mark.parametrize("size", ["5TB", "0", "-1GB", "many"])
def test_shard_size_that_is_none(source: Path, tmp_path: Path, size: str) -> None:
    out = ["-o", tmp_path / "out", "--precision", "bf16"]
    result = invoke(source, *out, f"--max-shard-size={size}")
    assert result.exit_code == 2
    assert f"expected a size like 5GB or 500MB, found '{size}'" in result.stderr


def test_precision_that_is_none(source: Path, tmp_path: Path) -> None:
    result = invoke(source, "-o", tmp_path / "out", "--precision", "int4")
    assert result.exit_code == 2
    assert "'nvfp4', 'fp8', 'bf16'" in result.stderr


def test_experts_only_bf16(source: Path, tmp_path: Path) -> None:
    result = invoke(source, "-o", tmp_path / "out", "--precision", "bf16", "--experts-only")
    assert result.exit_code == 1
    assert "experts_only: only means something for nvfp4 and fp8" in result.stderr


def test_one_message_and_no_traceback(tmp_path: Path) -> None:
    result = invoke(tmp_path / "nowhere", "-o", tmp_path / "out", "--precision", "fp8")
    assert result.exit_code == 1
    assert f"Error: {tmp_path / 'nowhere'}: no such folder" in result.stderr
    assert "Traceback" not in result.output


INTERRUPTED = """
import os, signal
from beam_trt.cli import quantize as command
from beam_trt.cli.main import main

inner = command.Bar.update

def update(self, now):
    inner(self, now)
    if now.num_tensors > 50:
        os.kill(os.getpid(), signal.SIGINT)

command.Bar.update = update
main()
"""


def interrupt(source: Path, out: Path, *options: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", INTERRUPTED, "quantize", str(source)]
    command += ["-o", str(out), "--precision", "fp8", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert "Stopped after" in done.stderr
    assert "tensors" in done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_interrupt_before_the_first_shard(source: Path, tmp_path: Path) -> None:
    assert "start again at will" in interrupt(source, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_interrupt_says_what_is_kept_and_how_to_continue(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = interrupt(source, out, "--max-shard-size", "20KB")
    assert f"shards are finished and kept in {tmp_path / '.out.partial'}" in text
    assert "run the same command again to continue from there" in text
    options = ["-o", out, "--precision", "fp8", "--max-shard-size", "20KB"]
    assert invoke(source, *options).exit_code == 0
    assert list(tmp_path.iterdir()) == [out]
    assert invoke(source, "-o", tmp_path / "other", *options[2:]).exit_code == 0
    for path in out.iterdir():
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes()
