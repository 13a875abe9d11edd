"""A stopped run is continued and ends with the bytes of a run that nobody disturbed."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tensors import rewrite

from beam_trt import quantize
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.errors import BeamTrtError, CheckpointError, ConfigError, OutputError
from beam_trt.quantize.calibrate import Calibrator
from beam_trt.quantize.report import Report
from beam_trt.quantize.stream import Progress

NVFP4, FP8 = QuantConfig(Precision.NVFP4), QuantConfig(Precision.FP8)
SHARD_BYTES = 50_000


def run(source: Path, out: Path, quant: QuantConfig, samples: Any, **kwargs: Any) -> Report:
    return quantize.run(source, out, quant, samples, **({"max_shard_bytes": SHARD_BYTES} | kwargs))


def stop_run(source: Path, out: Path, quant: QuantConfig, samples: Any, at: float) -> Path:
    """Interrupt a run when the share `at` of its tensors is written; its hidden folder."""

    def stop(now: Progress) -> None:
        if now.num_tensors >= at * now.total_tensors:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(source, out, quant, samples, progress=stop)
    assert not out.exists()
    return out.with_name(f".{out.name}.partial")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def shards(work: Path) -> dict[str, int]:
    """Finished shards of a hidden folder and their times."""
    return {path.name: path.stat().st_mtime_ns for path in (work / "result").iterdir()}


@pytest.mark.parametrize("at", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("quant", [NVFP4, FP8], ids=lambda q: q.precision)
def test_continued_run_has_the_same_bytes_and_report(
    source: Path, samples: list[list[int]], tmp_path: Path, quant: QuantConfig, at: float
) -> None:
    expected = run(source, tmp_path / "whole", quant, samples)
    work = stop_run(source, tmp_path / "out", quant, samples, at)
    finished = shards(work)
    report = run(source, tmp_path / "out", quant, samples)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert replace(report, seconds=0.0) == replace(expected, seconds=0.0)
    assert finished
    for name, time in finished.items():
        assert (tmp_path / "out" / name).stat().st_mtime_ns == time, f"{name} was made twice"
    assert not work.exists()


def test_layers_are_calibrated_once(
    source: Path, samples: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    inner = Calibrator._run_layer

    def counted(self: Calibrator, layer_idx: int) -> Any:
        ran.append(layer_idx)
        return inner(self, layer_idx)

    monkeypatch.setattr(Calibrator, "_run_layer", counted)
    for at in (0.1, 0.4, 0.99):
        stop_run(source, tmp_path / "out", NVFP4, samples, at)
    run(source, tmp_path / "out", NVFP4, samples)
    assert ran == [0, 1, 2, 3, 4]


def test_damaged_activations_are_calibrated_anew(
    source: Path, samples: list[list[int]], tmp_path: Path
) -> None:
    run(source, tmp_path / "whole", NVFP4, samples)
    work = stop_run(source, tmp_path / "out", NVFP4, samples, 0.3)
    (activations,) = work.glob("activations-*.bin")
    data = bytearray(activations.read_bytes())
    data[-1] ^= 1
    activations.write_bytes(data)
    report = run(source, tmp_path / "out", NVFP4, samples)
    assert any("calibration started over" in warning for warning in report.warnings)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damaged_shard_is_made_anew(source: Path, tmp_path: Path, damage: str) -> None:
    run(source, tmp_path / "whole", FP8, None)
    work = stop_run(source, tmp_path / "out", FP8, None, 0.5)
    name = min(shards(work))
    data = bytearray((work / "result" / name).read_bytes())
    data[-1] ^= 1
    (work / "result" / name).unlink()
    if damage != "remove":
        (work / "result" / name).write_bytes(data if damage == "flip" else data[:-1])
    report = run(source, tmp_path / "out", FP8, None)
    assert any(f"{name} of the interrupted run was damaged" in text for text in report.warnings)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("tail", [b'{"kind": "sha', b"\x00", b'{"kind": "shard"}'])
def test_journal_cut_in_a_line(source: Path, tmp_path: Path, tail: bytes) -> None:
    run(source, tmp_path / "whole", FP8, None)
    work = stop_run(source, tmp_path / "out", FP8, None, 0.5)
    with (work / "journal.jsonl").open("ab") as file:
        file.write(tail)
    finished = shards(work)
    stop_run(source, tmp_path / "out", FP8, None, 0.8)
    assert shards(work).items() >= finished.items()
    run(source, tmp_path / "out", FP8, None)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("text", ["{}\n", "nothing\n", "[]\n", '{"kind": "shard"}\n'])
def test_journal_that_is_none(source: Path, tmp_path: Path, text: str) -> None:
    work = stop_run(source, tmp_path / "out", FP8, None, 0.5)
    (work / "journal.jsonl").write_text(text)
    before = contents(work / "result")
    with pytest.raises(OutputError) as caught:
        run(source, tmp_path / "out", FP8, None)
    assert f"{work / 'journal.jsonl'}: expected the journal" in str(caught.value)
    assert f"Delete {work} to start over" in str(caught.value)
    assert contents(work / "result") == before


def refusal(error: type[BeamTrtError], work: Path, *args: Any, **kwargs: Any) -> str:
    """The message of a refused run, which must not touch what is kept."""
    before = {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}
    with pytest.raises(error) as caught:
        run(*args, **kwargs)
    assert {path: path.read_bytes() for path in work.rglob("*") if path.is_file()} == before
    text = str(caught.value)
    assert f"delete {work} to start over" in text
    return text


def test_other_settings_are_refused(source: Path, samples: list[list[int]], tmp_path: Path) -> None:
    out = tmp_path / "out"
    work = stop_run(source, out, NVFP4, samples, 0.4)

    def text(quant: QuantConfig, given: Any, **kwargs: Any) -> str:
        return refusal(ConfigError, work, source, out, quant, given, **kwargs)

    assert "precision: nvfp4 there, fp8 now" in text(FP8, None)
    experts_only = QuantConfig(Precision.NVFP4, experts_only=True)
    assert "experts_only: False there, True now" in text(experts_only, samples)
    assert "max_shard_bytes: 50000 there, 60000 now" in text(NVFP4, samples, max_shard_bytes=60_000)
    assert "calibration samples: 4 there, 3 now" in text(NVFP4, samples[:3])
    assert "calibration token ids: sha256" in text(NVFP4, [samples[0][::-1], *samples[1:]])
    run(source, out, NVFP4, samples)


def test_other_source_is_refused(source: Path, tmp_path: Path) -> None:
    changed, out = Path(shutil.copytree(source, tmp_path / "src")), tmp_path / "out"
    work = stop_run(changed, out, FP8, None, 0.5)

    def poke(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.4.mlp.experts.7.down_proj.weight"][3, 4] += 1

    rewrite(changed, poke)
    text = refusal(CheckpointError, work, changed, out, FP8, None)
    assert "read another source: model-0000" in text
    assert "more" not in text, "one shard changed"
    # A copy elsewhere with other file times is the same checkpoint.
    run(
        Path(shutil.copytree(source, tmp_path / "copy", copy_function=shutil.copyfile)),
        out,
        FP8,
        None,
    )
    assert out.exists()


def test_bad_tensor_keeps_what_is_finished(source: Path, tmp_path: Path) -> None:
    bad = Path(shutil.copytree(source, tmp_path / "src"))

    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.4.mlp.experts.7.down_proj.weight"][3, 4] = float("nan")

    rewrite(bad, damage)
    with pytest.raises(CheckpointError) as caught:
        run(bad, tmp_path / "out", FP8, None)
    assert "expected finite weights" in str(caught.value)
    assert "shards are finished and kept in" in str(caught.value)
    assert "run the same command again to continue from there" in str(caught.value)
    assert shards(tmp_path / ".out.partial")


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


def test_full_disk_continues_when_there_is_room(
    source: Path, samples: list[list[int]], tmp_path: Path, small_disk: Path
) -> None:
    run(source, tmp_path / "whole", NVFP4, samples)
    out = small_disk / "out"
    with pytest.raises(OutputError) as caught:
        run(source, out, NVFP4, samples)
    assert "the disk is full" in str(caught.value)
    assert "run the same command again to continue from there" in str(caught.value)
    finished = shards(small_disk / ".out.partial")
    assert len(finished) >= 3
    subprocess.run(["mount", "-o", "remount,size=5m", str(small_disk)], check=True)
    run(source, out, NVFP4, samples)
    assert contents(out) == contents(tmp_path / "whole")
    assert all((out / name).stat().st_mtime_ns == time for name, time in finished.items())


def test_output_on_a_mount_point(source: Path, tmp_path: Path, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=5m", str(small_disk)], check=True)
    run(source, tmp_path / "whole", FP8, None)

    def stop(now: Progress) -> None:
        if now.num_tensors > 150:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(source, small_disk, FP8, None, progress=stop)
    assert [path.name for path in small_disk.iterdir()] == [".partial"]
    run(source, small_disk, FP8, None)
    assert contents(small_disk) == contents(tmp_path / "whole")


@pytest.mark.parametrize("num_moved", [0, 1, 5])
def test_stopped_while_files_move_into_a_mount_point(
    source: Path,
    tmp_path: Path,
    small_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_moved: int,
) -> None:
    subprocess.run(["mount", "-o", "remount,size=5m", str(small_disk)], check=True)
    run(source, tmp_path / "whole", FP8, None)
    rename, moved = Path.rename, []

    def limited(self: Path, target: Path) -> Path:
        if len(moved) == num_moved:
            raise KeyboardInterrupt
        moved.append(target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", limited)
    with pytest.raises(KeyboardInterrupt):
        run(source, small_disk, FP8, None)
    monkeypatch.setattr(Path, "rename", rename)
    assert len(list(small_disk.iterdir())) == num_moved + 1
    run(source, small_disk, FP8, None)
    assert contents(small_disk) == contents(tmp_path / "whole")


def test_disk_too_small_for_anything(source: Path, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=8k", str(small_disk)], check=True)
    with pytest.raises(OutputError, match="nothing half-written was left"):
        run(source, small_disk / "out", FP8, None)
    assert list(small_disk.iterdir()) == []


def test_killed_after_the_result_had_moved(source: Path, tmp_path: Path) -> None:
    """Only the journal is left: it must not make a later run believe in shards."""
    work = stop_run(source, tmp_path / "out", FP8, None, 0.5)
    shutil.rmtree(work / "result")
    report = run(source, tmp_path / "out", FP8, None)
    assert not any("damaged" in text for text in report.warnings)
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_kill_rounds(source: Path, tmp_path: Path) -> None:
    script = Path(__file__).with_name("kill_rounds.py")
    command = [sys.executable, "-W", "ignore", str(script), str(source), str(tmp_path), "10", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    tally = json.loads(done.stdout)
    assert tally["kills"] == 10
    assert tally["differing"] == tally["made_twice"] == 0
    assert tally["kept"] > 0
    assert tally["finished"] > 0
