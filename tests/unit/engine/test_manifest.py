"""An engine says before loading weights why it cannot be started here. No torch, no weights."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from beam_trt.config.build import BuildConfig
from beam_trt.config.mapping import Mapping
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.engine.manifest import EngineConfig, Manifest, sha256_of
from beam_trt.errors import EngineError

TINY = Path(__file__).parents[3] / "beam_trt/assets/beam_tiny"


def make_engine(
    folder: Path, tp_size: int = 2, gpu: str | None = None, sm: int | None = None
) -> Path:
    """An engine directory with stand-ins for its weights."""
    tp_size = 2
    folder.mkdir()
    model = ModelConfig.from_folder(TINY)
    quant = QuantConfig(Precision.NVFP4)
    build = BuildConfig(1024, gpu=gpu)
    config = EngineConfig(folder, model, quant, Mapping(tp_size), build, versions={"torch": "2"})
    (folder / "config.json").write_text(json.dumps(config.to_dict()), encoding="utf-8")
    for rank in range(tp_size):
        (folder / f"rank{rank}.safetensors").write_bytes(bytes([rank]) * 100)
    (folder / "plugins").mkdir()
    (folder / "plugins" / "launch_table.json").write_text("{}", encoding="utf-8")
    Manifest.of_files(folder, {"identity": "x"}, {"gpu": gpu, "sm": sm}).write(folder)
    return folder


@pytest.fixture
def engine_dir(tmp_path: Path) -> Path:
    return make_engine(tmp_path / "engine")


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    raw = json.loads(path.read_text(encoding="utf-8"))
    change(raw)
    path.write_text(json.dumps(raw), encoding="utf-8")


def test_config_and_manifest_survive_the_disk(engine_dir: Path) -> None:
    engine = EngineConfig.load(engine_dir)
    assert engine.model == ModelConfig.from_folder(TINY)
    assert (engine.quant, engine.mapping) == (QuantConfig(Precision.NVFP4), Mapping(2))
    assert engine.build == BuildConfig(1024)
    assert engine.versions == {"torch": "2"}
    manifest = engine.check_start(2)
    assert [entry.name for entry in manifest.files] == [
        "config.json",
        "plugins/launch_table.json",
        "rank0.safetensors",
        "rank1.safetensors",
    ]
    assert manifest.files[2].sha256 == sha256_of(engine_dir / "rank0.safetensors")


def test_another_rank_count(engine_dir: Path) -> None:
    with pytest.raises(EngineError) as error:
        EngineConfig.load(engine_dir).check_start(4)
    assert str(error.value) == (
        f"{engine_dir}/config.json: built for tp_size 2, started with 4 ranks. "
        "Start 2 ranks or rebuild with tp_size 4."
    )


def test_a_file_that_changed(engine_dir: Path) -> None:
    path = engine_dir / "plugins" / "launch_table.json"
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(EngineError, match=r"launch_table.json: expected sha256 .* found .*Build"):
        EngineConfig.load(engine_dir).check_start(2)


def test_weights_that_changed_are_found_by_their_hash_alone(engine_dir: Path) -> None:
    path = engine_dir / "rank1.safetensors"
    path.write_bytes(b"\7" * 100)
    manifest = EngineConfig.load(engine_dir).check_start(2)
    with pytest.raises(EngineError, match=r"rank1.safetensors: expected sha256 .*copy it again"):
        manifest.check_hash(engine_dir, "rank1.safetensors")


def test_a_file_that_was_cut(engine_dir: Path) -> None:
    (engine_dir / "rank1.safetensors").write_bytes(b"\1" * 99)
    with pytest.raises(EngineError, match=r"rank1.safetensors: expected 100 bytes, found 99"):
        EngineConfig.load(engine_dir).check_start(2)


def test_a_missing_rank_file(engine_dir: Path) -> None:
    (engine_dir / "rank0.safetensors").unlink()
    with pytest.raises(EngineError, match=r"rank0.safetensors: missing; manifest.json lists it"):
        EngineConfig.load(engine_dir).check_start(2)


def test_a_manifest_of_fewer_ranks(engine_dir: Path) -> None:
    edit(engine_dir / "manifest.json", lambda raw: raw["files"].pop())
    with pytest.raises(EngineError, match=r"does not list rank1.safetensors.*tp_size 2 needs"):
        EngineConfig.load(engine_dir).check_start(2)


def test_a_stray_file(engine_dir: Path) -> None:
    (engine_dir / "rank2.safetensors").write_bytes(b"")
    with pytest.raises(EngineError, match=r"rank2.safetensors: not listed in manifest.json"):
        Manifest.load(engine_dir).check_no_stray(engine_dir)


@pytest.mark.parametrize("file", ["config.json", "manifest.json"])
def test_a_newer_engine(engine_dir: Path, file: str) -> None:
    def newer(raw: dict[str, Any]) -> None:
        raw.update(engine_format=99, version="9.0", tool_version="9.0")

    edit(engine_dir / file, newer)
    with pytest.raises(EngineError) as error:
        EngineConfig.load(engine_dir).check_start(2)
    assert f"{file}: written by beam-trt 9.0 in engine format 99" in str(error.value)
    assert "Install beam-trt 9.0 or newer, or rebuild" in str(error.value)


def test_the_wrong_gpu(tmp_path: Path) -> None:
    engine = EngineConfig.load(make_engine(tmp_path / "gpu", gpu="b200", sm=100))
    engine.check_start(2, sm=100)
    with pytest.raises(EngineError, match=r"built for b200 \(sm_100\), started on the CPU"):
        engine.check_start(2)
    with pytest.raises(EngineError, match=r"built for b200 .*, started on a GPU with sm_90"):
        engine.check_start(2, sm=90)
    on_cpu = EngineConfig.load(make_engine(tmp_path / "cpu"))
    with pytest.raises(EngineError, match=r"built for cpu, started on a GPU with sm_90"):
        on_cpu.check_start(2, sm=90)


def test_folders_that_are_no_engine(tmp_path: Path, engine_dir: Path) -> None:
    with pytest.raises(EngineError, match=r"no such folder. Give the folder of a built engine"):
        EngineConfig.load(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(EngineError, match=r"not an engine: it has no config.json"):
        EngineConfig.load(tmp_path / "empty")
    with pytest.raises(EngineError, match=r"it has no pretrained_config. Give the `engine` folder"):
        EngineConfig.load(TINY)
    (engine_dir / "manifest.json").unlink()
    with pytest.raises(EngineError, match=r"not an engine: it has no manifest.json"):
        EngineConfig.load(engine_dir).check_start(2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw.pop("mapping"), r"config.json: not complete: 'mapping'"),
        (lambda raw: raw["mapping"].update(pp_size=2), r"config.json: not complete: .*pp_size"),
        (lambda raw: raw["build_config"].update(max_seq_len=0), r"config.json: .*at least 1"),
        (lambda raw: raw["quantization"].update(precision="fp5"), r"config.json: .*found 'fp5'"),
    ],
)
def test_a_config_that_cannot_be_right(
    engine_dir: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    edit(engine_dir / "config.json", change)
    with pytest.raises(EngineError, match=message):
        EngineConfig.load(engine_dir)


@pytest.mark.parametrize("text", ["{", "[]", ""])
@pytest.mark.parametrize("file", ["config.json", "manifest.json"])
def test_json_that_is_damaged(engine_dir: Path, file: str, text: str) -> None:
    (engine_dir / file).write_text(text, encoding="utf-8")
    with pytest.raises(EngineError, match=rf"{file}: (cannot be read as JSON|expected a JSON)"):
        EngineConfig.load(engine_dir).check_start(2)


def test_reading_an_engine_needs_no_torch(engine_dir: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from beam_trt.engine.manifest import EngineConfig; "
        f"EngineConfig.load(Path({str(engine_dir)!r})).check_start(2); assert 'torch' not in "
        "sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
