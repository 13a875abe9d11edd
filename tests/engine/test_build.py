"""An engine is complete or absent, the same every time, and refuses what cannot be right."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from engine.random_checkpoints import write_random_checkpoint
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from beam_trt.config.build import BuildConfig
from beam_trt.config.hardware import Gpu, gpus
from beam_trt.config.mapping import Mapping
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.engine.build import build_engine
from beam_trt.engine.manifest import EngineConfig, Manifest
from beam_trt.errors import BeamTrtError, CheckpointError, ConfigError, OutputError

NVFP4 = QuantConfig(Precision.NVFP4)
BF16 = QuantConfig(Precision.BF16)
BUILD = BuildConfig(1024)


@pytest.fixture(scope="module")
def nvfp4_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "nvfp4"
    write_random_checkpoint(folder, NVFP4)
    return folder


@pytest.fixture
def changed_model(tmp_path: Path, nvfp4_model: Path) -> Path:
    """A copy of the NVFP4 model for tests that damage it."""
    folder = tmp_path / "changed"
    folder.mkdir()
    for file in nvfp4_model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def change(folder: Path, name: str, value: torch.Tensor | None) -> None:
    """Replace one tensor of a single-file checkpoint; None removes it."""
    tensors = load_file(folder / "model.safetensors")
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_two_builds_are_the_same_bytes(tmp_path: Path, nvfp4_model: Path) -> None:
    for name in ("first", "second"):
        build_engine(nvfp4_model, tmp_path / name, NVFP4, Mapping(4), BUILD)
    first, second = files_of(tmp_path / "first"), files_of(tmp_path / "second")
    assert set(first) >= {"config.json", "manifest.json", "plugins/launch_table.json"}
    assert first == second


def test_the_manifest_is_right_about_every_file(tmp_path: Path, nvfp4_model: Path) -> None:
    engine_dir = tmp_path / "engine"
    build_engine(nvfp4_model, engine_dir, NVFP4, Mapping(2), BUILD)
    listed = json.loads((engine_dir / "manifest.json").read_text(encoding="utf-8"))["files"]
    found = files_of(engine_dir)
    assert {entry["name"] for entry in listed} == found.keys() - {"manifest.json"}
    for entry in listed:
        data = found[entry["name"]]
        assert entry["num_bytes"] == len(data)
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()


def test_progress_counts_every_byte(tmp_path: Path, nvfp4_model: Path) -> None:
    seen: list[tuple[int, int]] = []
    build_engine(
        nvfp4_model,
        tmp_path / "engine",
        NVFP4,
        Mapping(2),
        BUILD,
        lambda done, total: seen.append((done, total)),
    )
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
    assert len({total for _, total in seen}) == 1


def test_tokenizer_files_travel(tmp_path: Path, changed_model: Path) -> None:
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    for name in (*names, "generation_config.json"):
        (changed_model / name).write_text(name, encoding="utf-8")
    build_engine(changed_model, tmp_path / "engine", NVFP4, Mapping(), BUILD)
    found = files_of(tmp_path / "engine" / "tokenizer")
    assert {name: name.encode() for name in (*names, "generation_config.json")} == found


def test_the_launch_table_says_what_runs(tmp_path: Path, nvfp4_model: Path) -> None:
    notes: list[str] = []
    for gpu in (None, "b200"):
        build = BuildConfig(1024, gpu=gpu)
        folder = tmp_path / f"engine-{gpu}"
        build_engine(nvfp4_model, folder, NVFP4, Mapping(), build, on_note=notes.append)
        table = json.loads((folder / "plugins/launch_table.json").read_text(encoding="utf-8"))
        assert table["versions"]["torch"] == torch.__version__
        assert "beam_trt::hybrid_attention" in table["operators"]
        for entry in table["operators"].values():
            assert "cpu" in entry["available"]
            if gpu is None:
                assert entry["implementation"] == "cpu"
            elif "cuda" not in entry["available"]:
                assert entry["implementation"] is None
    table_target = Manifest.load(tmp_path / "engine-b200").target
    assert table_target == {"gpu": "b200", "sm": 100}
    missing = [e for e in table["operators"].values() if e["implementation"] is None]
    assert len(notes) == bool(missing)


def test_an_interrupted_build_leaves_nothing(tmp_path: Path, nvfp4_model: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_engine(nvfp4_model, tmp_path / "engine", NVFP4, Mapping(2), BUILD, stop)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_build_leaves_no_engine_and_does_not_stand_in_the_way(
    tmp_path: Path, nvfp4_model: Path
) -> None:
    code = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from beam_trt.config.build import BuildConfig
        from beam_trt.config.mapping import Mapping
        from beam_trt.config.quant import Precision, QuantConfig
        from beam_trt.engine.build import build_engine
        def half(done, total):
            if done > total // 2:
                print("half", flush=True)
                time.sleep(600)
        build_engine(Path({str(nvfp4_model)!r}), Path({str(tmp_path / "engine")!r}),
                     QuantConfig(Precision.NVFP4), Mapping(2), BuildConfig(1024), half)
    """)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half\n"
        with pytest.raises(OutputError, match="another process is writing here"):
            build_engine(nvfp4_model, tmp_path / "engine", NVFP4, Mapping(2), BUILD)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "engine").exists()
    for left in tmp_path.iterdir():
        with pytest.raises(BeamTrtError):
            EngineConfig.load(left).check_start(2)
    build_engine(nvfp4_model, tmp_path / "engine", NVFP4, Mapping(2), BUILD)
    assert [path.name for path in tmp_path.iterdir()] == ["engine"]
    EngineConfig.load(tmp_path / "engine").check_start(2)


def test_a_disk_too_small_is_said_before_writing(
    tmp_path: Path, nvfp4_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(OutputError, match=r"needs 0.00 GB, the disk has 0.00 GB free"):
        build_engine(nvfp4_model, tmp_path / "engine", NVFP4, Mapping(2), BUILD)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, nvfp4_model: Path) -> None:
    """A file size limit of the process stands for the disk: it needs no rights to set up."""
    code = textwrap.dedent(f"""
        import resource, signal
        from pathlib import Path
        from beam_trt.config.build import BuildConfig
        from beam_trt.config.mapping import Mapping
        from beam_trt.config.quant import Precision, QuantConfig
        from beam_trt.engine.build import build_engine
        from beam_trt.errors import OutputError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        try:
            build_engine(Path({str(nvfp4_model)!r}), Path({str(tmp_path / "engine")!r}),
                         QuantConfig(Precision.NVFP4), Mapping(2), BuildConfig(1024))
        except OutputError as error:
            print(error)
    """)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "engine: cannot be written: File too large" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path, nvfp4_model: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(OutputError, match=r"found 1 entries \(thesis.txt\)"):
        build_engine(nvfp4_model, tmp_path / "engine", NVFP4, Mapping(), BUILD)
    assert os.listdir(tmp_path / "engine") == ["thesis.txt"]


def test_heads_and_experts_that_do_not_divide(tmp_path: Path, nvfp4_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"8 query heads % tp_size 3.*Possible tp_size here"):
        build_engine(nvfp4_model, tmp_path / "engine", NVFP4, Mapping(3), BUILD)
    with pytest.raises(ConfigError, match=r"16 experts % ep_size 3 != 0"):
        build_engine(nvfp4_model, tmp_path / "engine", NVFP4, Mapping(3, 3), BUILD)
    with pytest.raises(ConfigError, match=r"8 input columns on one rank are no multiple of 16"):
        build_engine(nvfp4_model, tmp_path / "engine", NVFP4, Mapping(8), BUILD)
    assert list(tmp_path.iterdir()) == []


def test_a_model_larger_than_the_gpu(tmp_path: Path, nvfp4_model: Path) -> None:
    small = replace(Gpu.named("h200"), name="pocket", memory_gb=1e-6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(gpus(), "pocket", small)
        build = BuildConfig(1024, gpu="pocket")
        with pytest.raises(ConfigError, match=r"gpu pocket: each of 2 ranks holds .* Use more"):
            build_engine(nvfp4_model, tmp_path / "engine", NVFP4, Mapping(2), build)


def test_a_longer_sequence_than_the_model_knows(tmp_path: Path, nvfp4_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_position_embeddings 4096, found 4097"):
        build_engine(nvfp4_model, tmp_path / "engine", NVFP4, Mapping(), BuildConfig(4097))


def test_another_precision_than_the_checkpoint(tmp_path: Path, nvfp4_model: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected a checkpoint in fp8, found nvfp4.*orig"):
        build_engine(nvfp4_model, tmp_path / "engine", QuantConfig(Precision.FP8), Mapping(), BUILD)
    quant = QuantConfig(Precision.NVFP4, experts_only=True)
    with pytest.raises(CheckpointError, match=r"nvfp4 \(experts only\), found nvfp4"):
        build_engine(nvfp4_model, tmp_path / "engine", quant, Mapping(), BUILD)
    write_random_checkpoint(tmp_path / "bf16", BF16)
    with pytest.raises(CheckpointError, match=r"expected .* nvfp4, found bf16.*beam-trt quantize"):
        build_engine(tmp_path / "bf16", tmp_path / "engine", NVFP4, Mapping(), BUILD)


def test_a_bf16_checkpoint_becomes_an_exact_fp32_engine(tmp_path: Path) -> None:
    source = write_random_checkpoint(tmp_path / "bf16", BF16)
    engine_dir = tmp_path / "engine"
    build = BuildConfig(1024, kv_dtype="float32")
    build_engine(tmp_path / "bf16", engine_dir, QuantConfig(Precision.FP32), Mapping(), build)
    assert EngineConfig.load(engine_dir).model.dtype == "float32"
    with safe_open(engine_dir / "rank0.safetensors", "pt") as file:
        found = file.get_tensor("embed_tokens")
    expected = source["model.embed_tokens.weight"].float()
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_an_fp32_checkpoint_is_not_rounded_silently(tmp_path: Path, changed_model: Path) -> None:
    name = "model.norm.weight"
    change(changed_model, name, torch.ones(64, dtype=torch.float32))
    with pytest.raises(CheckpointError, match=rf"{name}: expected BF16, found torch.float32.*roun"):
        build_engine(changed_model, tmp_path / "engine", NVFP4, Mapping(), BUILD)
    assert not (tmp_path / "engine").exists()


ATTENTION = "model.layers.0.self_attn"
EXPERT = "model.layers.3.mlp.experts.5"


@pytest.mark.parametrize("name", [f"{ATTENTION}.k_proj", f"{EXPERT}.up_proj"])
def test_unequal_weight_scale_2_names_the_tensors(
    tmp_path: Path, changed_model: Path, name: str
) -> None:
    change(changed_model, f"{name}.weight_scale_2", torch.tensor(77.0))
    with pytest.raises(CheckpointError) as error:
        build_engine(changed_model, tmp_path / "engine", NVFP4, Mapping(2), BUILD)
    for part in (f"{name}.weight_scale_2 = 77", "expected one weight_scale_2", "Quantize the orig"):
        assert part in str(error.value)
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["input_scale", "weight_scale_2"])
def test_a_scale_that_would_give_nan(
    tmp_path: Path, changed_model: Path, kind: str, value: float
) -> None:
    name = f"{EXPERT}.down_proj.{kind}"
    change(changed_model, name, torch.tensor(value))
    with pytest.raises(CheckpointError, match=rf"{name}: expected finite scales above zero, found"):
        build_engine(changed_model, tmp_path / "engine", NVFP4, Mapping(2, 2), BUILD)


def test_a_block_scale_that_is_nan(tmp_path: Path, changed_model: Path) -> None:
    name = f"{ATTENTION}.o_proj.weight_scale"
    scale = torch.full((64, 8), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)
    change(changed_model, name, scale)
    with pytest.raises(CheckpointError, match=rf"{name}: expected finite scales"):
        build_engine(changed_model, tmp_path / "engine", NVFP4, Mapping(2), BUILD)


def test_a_missing_input_scale(tmp_path: Path, changed_model: Path) -> None:
    name = f"{EXPERT}.gate_proj.input_scale"
    change(changed_model, name, None)
    with pytest.raises(CheckpointError, match=name):
        build_engine(changed_model, tmp_path / "engine", NVFP4, Mapping(), BUILD)


def test_unequal_input_scales_become_their_maximum_and_are_told(
    tmp_path: Path, changed_model: Path
) -> None:
    change(changed_model, f"{EXPERT}.up_proj.input_scale", torch.tensor(123.0))
    notes: list[str] = []
    build_engine(changed_model, tmp_path / "engine", NVFP4, Mapping(2), BUILD, on_note=notes.append)
    assert len(notes) == 1
    assert f"{EXPERT}.up_proj.input_scale = 123" in notes[0]
    for rank in range(2):
        with safe_open(tmp_path / "engine" / f"rank{rank}.safetensors", "pt") as file:
            assert file.get_tensor("layers.3.moe.gate_up.input_scale")[5] == 123.0
