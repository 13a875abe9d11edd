"""`beam-trt build` as stages: what each leaves, what a second run does, what it refuses."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import small_config, write_checkpoint
from click.testing import CliRunner

from beam_trt.cli.main import main
from beam_trt.config.build import RuntimeKind
from beam_trt.config.deployment import Calibration, DeploymentConfig, Limits, RankLayout
from beam_trt.config.quant import Precision
from beam_trt.engine.manifest import EngineConfig, Manifest
from beam_trt.engine.pipeline import Silent, build_all, default_out_dir
from beam_trt.errors import BeamTrtError, CheckpointError, ConfigError, OutputError

FP8 = DeploymentConfig(Precision.FP8, mapping=RankLayout(2), build=Limits(max_seq_len=1024))
SHORT = {"num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small bf16 Beam without a tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "small"
    write_checkpoint(folder, small_config(**SHORT), dtype=torch.bfloat16)
    return folder


class Listener(Silent):
    """Keeps what it hears; stops the build where `stop_at` begins."""

    def __init__(self, stop_at: str | None = None) -> None:
        self.stop_at = stop_at
        self.stages: list[str] = []
        self.notes: list[str] = []

    def stage(self, name: str) -> None:
        self.stages.append(name)
        if name == self.stop_at:
            raise KeyboardInterrupt

    def note(self, text: str) -> None:
        self.notes.append(text)


def outcomes(report: Any) -> dict[str, str]:
    return {stage.name: stage.outcome for stage in report.stages}


def test_a_plain_model_is_quantized_and_built(tmp_path: Path, model: Path) -> None:
    listener = Listener()
    report = build_all(model, tmp_path / "out", FP8, reporter=listener)
    assert outcomes(report) == {
        "checkpoint": "built",
        "engine": "built",
        "triton_repo": "not possible",
    }
    assert any("without a tokenizer" in note for note in listener.notes)
    engine = EngineConfig.load(tmp_path / "out" / "engine")
    engine.check_start(2)
    assert (engine.quant.precision, engine.mapping.tp_size) == (Precision.FP8, 2)
    before, after = report.source_bytes, report.stages[0].num_bytes
    assert after < 0.8 * before


def test_a_second_run_reuses_every_stage(tmp_path: Path, model: Path) -> None:
    build_all(model, tmp_path / "out", FP8)
    manifest = (tmp_path / "out" / "engine" / "manifest.json").stat().st_mtime_ns
    listener = Listener()
    report = build_all(model, tmp_path / "out", FP8, reporter=listener)
    assert outcomes(report)["checkpoint"] == outcomes(report)["engine"] == "reused"
    assert listener.stages == ["triton_repo"]
    assert (tmp_path / "out" / "engine" / "manifest.json").stat().st_mtime_ns == manifest


def test_a_stopped_run_goes_on_where_it_stopped(tmp_path: Path, model: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_all(model, tmp_path / "out", FP8, reporter=Listener(stop_at="engine"))
    assert not (tmp_path / "out" / "engine").exists()
    report = build_all(model, tmp_path / "out", FP8)
    assert outcomes(report)["checkpoint"] == "reused"
    assert outcomes(report)["engine"] == "built"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "build.json",
        "checkpoint",
        "engine",
    ]


def test_other_settings_are_not_mixed_into_a_begun_build(tmp_path: Path, model: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        build_all(model, tmp_path / "out", FP8, reporter=Listener(stop_at="engine"))
    with pytest.raises(OutputError) as error:
        build_all(model, tmp_path / "out", replace(FP8, mapping=RankLayout(4)))
    assert "mapping.tp_size 2 there, 4 asked for" in str(error.value)
    assert f"build from {tmp_path}/out/checkpoint" in str(error.value)
    other_ranks = replace(FP8, mapping=RankLayout(4))
    report = build_all(tmp_path / "out" / "checkpoint", tmp_path / "other", other_ranks)
    assert outcomes(report)["checkpoint"] == "not needed"


def test_another_model_of_the_same_shape_is_noticed(tmp_path: Path, model: Path) -> None:
    write_checkpoint(tmp_path / "m", small_config(**SHORT), seed=1, dtype=torch.bfloat16)
    build_all(model, tmp_path / "out", FP8)
    with pytest.raises(CheckpointError, match=r"begun from another checkpoint .*\(m, bf16\)"):
        build_all(tmp_path / "m", tmp_path / "out", FP8)


def test_an_engine_of_another_checkpoint_is_not_reused(tmp_path: Path, model: Path) -> None:
    build_all(model, tmp_path / "out", FP8)
    manifest = Manifest.load(tmp_path / "out" / "engine")
    replace(manifest, source={**manifest.source, "identity": "?"}).write(tmp_path / "out/engine")
    with pytest.raises(OutputError, match="built from another checkpoint"):
        build_all(model, tmp_path / "out", FP8)


def test_what_will_fail_is_said_before_anything_is_written(tmp_path: Path, model: Path) -> None:
    nvfp4 = replace(FP8, precision=Precision.NVFP4, mapping=RankLayout(8))
    with pytest.raises(ConfigError, match="no multiple of 16"):
        build_all(model, tmp_path / "out", nvfp4)
    with pytest.raises(ConfigError, match=r"query heads % tp_size 3"):
        build_all(model, tmp_path / "out", replace(FP8, mapping=RankLayout(3)))
    with pytest.raises(BeamTrtError, match="builds engines for the native runtime only"):
        build_all(model, tmp_path / "out", replace(FP8, runtime=RuntimeKind.TENSORRT))
    with pytest.raises(CheckpointError, match="no such folder"):
        build_all(tmp_path / "nothing", tmp_path / "out", FP8)
    assert list(tmp_path.iterdir()) == []


def test_a_quantized_model_keeps_its_precision(tmp_path: Path, model: Path) -> None:
    build_all(model, tmp_path / "out", FP8)
    quantized = tmp_path / "out" / "checkpoint"
    nvfp4 = replace(FP8, precision=Precision.NVFP4)
    with pytest.raises(CheckpointError, match=r"in nvfp4, found fp8.*--precision fp8"):
        build_all(quantized, tmp_path / "other", nvfp4)
    assert not (tmp_path / "other").exists()


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path, model: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(OutputError, match=r"thesis.txt"):
        build_all(model, tmp_path / "out", FP8)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_the_default_folder_says_what_is_in_it(tmp_path: Path) -> None:
    assert default_out_dir(tmp_path / "beam", FP8) == Path("beam-fp8-tp2")
    split = replace(FP8, mapping=RankLayout(4, 2))
    assert default_out_dir(tmp_path / "beam", split) == Path("beam-fp8-tp4-ep2")


def test_beam_tiny_in_nvfp4_from_calibration_to_triton(tmp_path: Path, beam_tiny: Path) -> None:
    deployment = DeploymentConfig(
        Precision.NVFP4, mapping=RankLayout(4), calibration=Calibration(num_samples=2)
    )
    report = build_all(beam_tiny, tmp_path / "out", deployment)
    assert set(outcomes(report).values()) == {"built"}
    assert (tmp_path / "out" / "engine" / "tokenizer" / "tokenizer.json").is_file()
    assert list((tmp_path / "out" / "triton_repo").rglob("config.pbtxt"))


class TestCommand:
    """`beam-trt build` on the command line."""

    def run(self, *arguments: object) -> Any:
        return CliRunner().invoke(main, ["build", *map(str, arguments)])

    def test_json_tells_the_stages(self, tmp_path: Path, model: Path) -> None:
        out = tmp_path / "out"
        done = self.run(model, "--precision", "bf16", "--tp", 2, "-o", out, "--json")
        assert done.exit_code == 0, done.output
        answer = json.loads(done.stdout)
        assert [stage["outcome"] for stage in answer["stages"]][:2] == ["not needed", "built"]
        assert any("without a tokenizer" in note for note in answer["notes"])
        done = self.run(model, "--precision", "bf16", "--tp", 2, "-o", out)
        assert done.exit_code == 0
        assert "reused" in done.stdout

    def test_options_win_over_the_yaml(self, tmp_path: Path, model: Path) -> None:
        (tmp_path / "x.yaml").write_text(
            "precision: nvfp4\nmapping: {tp_size: 4}\nbuild: {max_batch_size: 3}\n",
            encoding="utf-8",
        )
        options = ["--config", tmp_path / "x.yaml", "--precision", "bf16", "--tp", 2]
        options += ["--max-seq-len", 77, "--tokens-per-block", 16]
        done = self.run(model, *options, "-o", tmp_path / "out")
        assert done.exit_code == 0, done.output
        engine = EngineConfig.load(tmp_path / "out" / "engine")
        assert engine.mapping.tp_size == 2
        assert (engine.build.max_batch_size, engine.build.max_seq_len) == (3, 77)
        assert engine.build.tokens_per_block == 16

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ((), "precision: give --precision nvfp4, fp8 or bf16, or a --config."),
            (("--precision", "int4"), "precision: expected one of nvfp4, fp8"),
            (("--precision", "fp8", "--tp", "3"), "8 query heads % tp_size 3 != 0"),
            (("--precision", "fp8", "--tp", "4", "--ep", "3"), "ep_size must divide tp_size"),
            (("--precision", "fp8", "--gpu", "h20"), "Did you mean 'h200'?"),
            (("--precision", "fp8", "--runtime", "tensorrt-llm"), "native runtime only"),
            (("--precision", "fp8", "--max-seq-len", "9999"), "max_position_embeddings 4096"),
            (("--config", "tinny"), "Did you mean tiny?"),
        ],
    )
    def test_an_error_is_one_message_and_exit_code_1(
        self, tmp_path: Path, model: Path, options: tuple[str, ...], message: str
    ) -> None:
        done = self.run(model, "-o", tmp_path / "out", *options)
        assert done.exit_code == 1
        assert message in done.stderr
        assert "Traceback" not in done.output
        assert not (tmp_path / "out").exists()

    def test_ctrl_c_says_where_it_stands(
        self, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("beam_trt.engine.pipeline.build_engine", stop)
        done = self.run(model, "--precision", "bf16", "-o", tmp_path / "out")
        assert done.exit_code != 0
        assert "Stopped in stage engine. Complete stages are kept" in done.stderr
