"""`verify --against`: which weights of two checkpoints differ, and by how much."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoints import small_config, write_checkpoint
from click.testing import CliRunner
from tensors import read_all, rewrite

from beam_trt import quantize
from beam_trt.cli.main import main
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.errors import CheckpointError
from beam_trt.quantize import differences as module
from beam_trt.quantize.differences import find_differences
from beam_trt.quantize.verify import verify

Q_PROJ = "model.layers.0.self_attn.q_proj"
EXPERT = "model.layers.4.mlp.experts.7.down_proj"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def made(
    source: Path,
    samples: list[list[int]],
    beam_tiny: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("differences")
    plain = Path(shutil.copytree(source, folder / "plain"))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(beam_tiny / name, plain)
    quantize.run(plain, folder / "nvfp4", QuantConfig(Precision.NVFP4), samples)
    quantize.run(plain, folder / "fp8", QuantConfig(Precision.FP8), max_shard_bytes=50_000)
    quantize.run(plain, folder / "experts", QuantConfig(Precision.NVFP4, True), samples)
    return {path.name: path for path in folder.iterdir()}


def changed(folder: Path, target: Path, change: Callable[[Tensors], None]) -> Path:
    copy = Path(shutil.copytree(folder, target))
    rewrite(copy, change)
    return copy


@pytest.mark.parametrize("kind", ["plain", "nvfp4", "fp8", "experts"])
def test_a_checkpoint_and_itself(made: dict[str, Path], kind: str) -> None:
    found = find_differences(made[kind], made[kind])
    assert found.is_identical
    assert found.num_weights == len(read_all(made["plain"]))
    assert found.largest == ()


def test_shards_do_not_matter(made: dict[str, Path], tmp_path: Path) -> None:
    quantize.run(made["plain"], tmp_path / "one", QuantConfig(Precision.FP8))
    assert find_differences(tmp_path / "one", made["fp8"]).is_identical


def test_one_byte_of_each_part(made: dict[str, Path], tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors[f"{Q_PROJ}.weight"][3, 4] ^= 1
        tensors[f"{EXPERT}.weight_scale"].view(torch.uint8)[5, 1] += 8
        for proj in ("gate_proj", "up_proj"):
            name = f"model.layers.4.mlp.experts.2.{proj}.input_scale"
            tensors[name] = tensors[name] * 2
        tensors["model.norm.weight"][0] += 1

    other = changed(made["nvfp4"], tmp_path / "other", change)
    found = find_differences(other, made["nvfp4"])
    assert found.is_same_format
    assert found.num_weights - found.num_identical == 5
    by_name = {each.name: each for each in found.largest}
    assert by_name[f"{Q_PROJ}.weight"].what == "other weight"
    assert by_name[f"{EXPERT}.weight"].what == "other weight_scale"
    gate = by_name["model.layers.4.mlp.experts.2.gate_proj.weight"]
    assert gate.what == "other input_scale"
    assert gate.relative == 0.0
    norm = read_all(made["nvfp4"])["model.norm.weight"].float()
    assert by_name["model.norm.weight"].relative == pytest.approx(float(1 / norm.norm()), rel=0.01)


@pytest.mark.parametrize("tile", [64, 1 << 20])
def test_formats_are_compared_by_value(
    made: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tile: int
) -> None:
    monkeypatch.setattr(module, "_TILE_ELEMENTS", tile)
    found = find_differences(made["fp8"], made["plain"], limit=1000)
    assert not found.is_same_format
    tensors, plain = read_all(made["fp8"]), read_all(made["plain"])
    quantized = [name for name, tensor in tensors.items() if tensor.dtype == torch.float8_e4m3fn]
    assert sorted(each.name for each in found.largest) == sorted(quantized)
    for each in found.largest:
        scale = tensors[each.name.replace(".weight", ".weight_scale")]
        values, there = tensors[each.name].float() * scale, plain[each.name].float()
        expected = float((values - there).norm() / there.norm())
        assert each.relative == pytest.approx(expected, rel=1e-4)
        assert each.what == "F8_E4M3 here, BF16 there"


def test_errors_of_formats_are_the_published_ones(made: dict[str, Path]) -> None:
    """Random normal weights lose 9.5 % in NVFP4 and 2.65 % in FP8; rows of 64 a
    little less."""
    for kind, expected in (("nvfp4", 0.095), ("fp8", 0.0265)):
        found = find_differences(made[kind], made["plain"])
        assert found.relative == pytest.approx(expected, rel=0.1)
    experts = find_differences(made["experts"], made["nvfp4"], limit=1000)
    assert all(".experts." not in each.name for each in experts.largest)
    assert experts.formats == ("nvfp4, experts only", "nvfp4")


def test_another_model(made: dict[str, Path], tmp_path: Path) -> None:
    config = small_config(num_hidden_layers=4, vocab_size=128)
    write_checkpoint(tmp_path / "other", config, dtype=torch.bfloat16)
    found = find_differences(made["plain"], tmp_path / "other", limit=1000)
    by_name = {each.name: each for each in found.largest}
    assert by_name["lm_head.weight"].what == "shape [256, 64] here, [128, 64] there"
    assert by_name["model.layers.4.mlp.gate.weight"].what == "only here"
    assert by_name["lm_head.weight"].relative is None


def test_a_checkpoint_that_is_none(made: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        find_differences(made["plain"], tmp_path / "nowhere")


def invoke(*args: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["verify", *map(str, args)])
    return result.exit_code, result.stdout, result.stderr


def test_command(made: dict[str, Path], tmp_path: Path) -> None:
    code, out, _ = invoke(made["nvfp4"], "--against", made["plain"])
    assert code == 0
    assert "weights have the same bytes" in out.replace("\n", " ")
    assert "U8 here, BF16 there" in out

    def change(tensors: Tensors) -> None:
        tensors[f"{Q_PROJ}.weight"][3, 4] ^= 1

    other = changed(made["nvfp4"], tmp_path / "other", change)
    num_weights = len(read_all(made["plain"]))
    code, out, err = invoke(other, "--against", made["nvfp4"], "--json")
    assert code == 1
    assert f"1 of {num_weights} weights differ" in err.replace("\n", " ")
    found = json.loads(out)["differences"]
    assert [each["name"] for each in found["largest"]] == [f"{Q_PROJ}.weight"]


def test_values_are_read_when_asked_for(made: dict[str, Path], tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["model.embed_tokens.weight"][200, 7] = float("nan")
        tensors[f"{Q_PROJ}.weight_scale"].view(torch.uint8)[0, 0] = 0

    other = changed(made["nvfp4"], tmp_path / "other", change)
    code, out, err = invoke(other)
    assert code == 0
    assert "--values reads every tensor too" in err
    code, out, _ = invoke(other, "--values")
    assert code == 1
    assert "model.embed_tokens.weight: expected finite numbers" in out.replace("\n", " ")
    assert "infinity at [200, 7]" in out.replace("\n", " ")
    assert f"{Q_PROJ}.weight_scale: expected finite and > 0" in out


def test_plain_tensors_are_read_in_tiles(
    made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from beam_trt.quantize import verify as verify_module

    monkeypatch.setattr(verify_module, "_TILE_ELEMENTS", 64 * 3)

    def change(tensors: Tensors) -> None:
        tensors["lm_head.weight"][255, 63] = float("inf")

    other = changed(made["fp8"], tmp_path / "other", change)
    problems = [problem for check in verify(other) for problem in check.problems]
    assert len(problems) == 1
    assert "lm_head.weight: expected finite numbers" in problems[0]
    assert "[255, 63]" in problems[0]


def test_engine_against_a_checkpoint(made: dict[str, Path], tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    engine.mkdir()
    (engine / "config.json").write_text('{"pretrained_config": {}}')
    code, _, err = invoke(engine, "--against", made["plain"])
    assert code == 1
    assert "only two checkpoints can be compared" in err.replace("\n", " ")
