"""What verify and inspect say, against transformers' own numbers and files damaged on purpose."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from checkpoints import small_config, write_checkpoint
from click.testing import CliRunner
from engine.random_checkpoints import write_random_checkpoint
from transformers import BeamForCausalLM

from beam_trt.cli.main import main
from beam_trt.config.build import BuildConfig
from beam_trt.config.mapping import Mapping
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.engine import compare as compare_module
from beam_trt.engine.build import build_engine
from beam_trt.engine.compare import compare, named_engines
from beam_trt.engine.inspect import inspect
from beam_trt.engine.verify import verify, verify_many
from beam_trt.errors import CheckpointError, ConfigError, EngineError
from beam_trt.quantize import run as quantize

SHAPE = {"num_hidden_layers": 6, "num_experts": 8, "num_experts_per_tok": 2}
SAMPLES = [[(7 * i * i + 3 * i) % 256 for i in range(n)] for n in (65, 130, 2)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small bf16 Beam without a tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "small"
    write_checkpoint(folder, small_config(**SHAPE), dtype=torch.bfloat16)
    return folder


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory, model: Path) -> dict[str, Path]:
    """Engines of `model` in every precision, on different numbers of ranks."""
    folder = tmp_path_factory.mktemp("engines")
    quantize(model, folder / "nvfp4", QuantConfig(Precision.NVFP4), SAMPLES)
    quantize(model, folder / "fp8", QuantConfig(Precision.FP8))
    wanted = {
        "fp32": (model, Mapping(2)),
        "bf16": (model, Mapping(1)),
        "fp8": (folder / "fp8", Mapping(2, 2)),
        "nvfp4": (folder / "nvfp4", Mapping(4)),
    }
    for name, (checkpoint, mapping) in wanted.items():
        kv_dtype = "float32" if name == "fp32" else "bfloat16"
        build = BuildConfig(1024, kv_dtype=kv_dtype)
        quant = QuantConfig(Precision(name))
        build_engine(checkpoint, folder / f"engine-{name}", quant, mapping, build)
    return {name: folder / f"engine-{name}" for name in wanted}


def copy_of(folder: Path, target: Path) -> Path:
    for path in folder.rglob("*"):
        if path.is_file():
            (target / path.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            (target / path.relative_to(folder)).write_bytes(path.read_bytes())
    return target


def test_every_precision_is_as_far_from_transformers_as_it_rounds(
    model: Path, engines: dict[str, Path]
) -> None:
    rows = {row.name: row for row in compare(engines, model, SAMPLES)}
    assert {row.num_tokens for row in rows.values()} == {sum(map(len, SAMPLES))}
    assert len({row.reference_perplexity for row in rows.values()}) == 1
    assert rows["fp32"].max_kl < 1e-7
    assert rows["fp32"].top1 == 1.0
    assert rows["fp32"].perplexity == pytest.approx(rows["fp32"].reference_perplexity, rel=1e-5)
    # Random weights amplify rounding; the order of the formats must still be theirs.
    assert rows["fp32"].kl < rows["bf16"].kl < rows["fp8"].kl < rows["nvfp4"].kl
    assert rows["bf16"].top1 > rows["nvfp4"].top1


def test_the_measures_are_those_of_torch(
    tmp_path: Path, model: Path, engines: dict[str, Path]
) -> None:
    """Engine of one model against another model: transformers gives both sides' logits here."""
    write_checkpoint(tmp_path / "other", small_config(**SHAPE), seed=5, dtype=torch.bfloat16)
    (row,) = compare({"x": engines["fp32"]}, tmp_path / "other", SAMPLES)
    ours, theirs = [
        BeamForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        for folder in (model, tmp_path / "other")
    ]
    kl, same, nll, reference_nll = [], [], [], []
    for ids in SAMPLES:
        batch = torch.tensor([ids])
        with torch.no_grad():
            found, expected = ours(batch).logits[0].float(), theirs(batch).logits[0].float()
        logs = (found.log_softmax(-1), expected.log_softmax(-1))
        kl += [F.kl_div(*logs, reduction="none", log_target=True).sum(-1)]
        same += [(found.argmax(-1) == expected.argmax(-1)).float()]
        nll += [F.cross_entropy(found[:-1], batch[0, 1:], reduction="none")]
        reference_nll += [F.cross_entropy(expected[:-1], batch[0, 1:], reduction="none")]
    assert row.kl == pytest.approx(torch.cat(kl).mean().item(), rel=1e-3)
    assert row.max_kl == pytest.approx(torch.cat(kl).max().item(), rel=1e-3)
    assert row.top1 == pytest.approx(torch.cat(same).mean().item(), abs=1e-6)
    assert row.perplexity == pytest.approx(torch.cat(nll).mean().exp().item(), rel=1e-3)
    expected_ppl = torch.cat(reference_nll).mean().exp().item()
    assert row.reference_perplexity == pytest.approx(expected_ppl, rel=1e-3)


def test_a_reference_that_cannot_be_one(tmp_path: Path, engines: dict[str, Path]) -> None:
    fp8 = engines["fp8"].parent / "fp8"
    with pytest.raises(CheckpointError, match="expected an unquantized reference, found fp8"):
        compare({"x": engines["bf16"]}, fp8, SAMPLES)
    write_checkpoint(tmp_path / "m", small_config(**SHAPE, vocab_size=512), dtype=torch.bfloat16)
    with pytest.raises(CheckpointError, match="vocabulary of 256, found one of 512"):
        compare({"x": engines["bf16"]}, tmp_path / "m", SAMPLES)
    with pytest.raises(CheckpointError, match=r"expected tokenizer.json"):
        verify(engines["bf16"], reference=tmp_path / "m")
    with pytest.raises(ConfigError, match="at least one text of two tokens"):
        compare({"x": engines["bf16"]}, tmp_path / "m", [[1]])


def test_engines_get_the_shortest_names_that_differ(
    tmp_path: Path, model: Path, engines: dict[str, Path]
) -> None:
    two = [engines["bf16"], engines["fp8"]]
    assert list(named_engines(two)) == ["bf16", "fp8"]
    build_engine(model, tmp_path / "e", QuantConfig(Precision.BF16), Mapping(2), BuildConfig(64))
    assert list(named_engines([engines["bf16"], tmp_path / "e"])) == ["bf16 tp1", "bf16 tp2"]


def damaged(tmp_path: Path, engine: Path, file: str, data: bytes | None, at: int = -1) -> Path:
    """A copy of an engine with `file` removed, or `data` written over it at byte `at`."""
    copy = copy_of(engine, tmp_path / "copy")
    if data is None:
        (copy / file).unlink()
        return copy
    with (copy / file).open("r+b") as handle:
        handle.seek(at, 0 if at >= 0 else 2)
        handle.write(data)
    return copy


@pytest.mark.parametrize(
    ("file", "data", "at", "check", "message"),
    [
        ("rank3.safetensors", b"\xff", -1, "sha256 of every file", "rank3.safetensors: expected s"),
        ("rank3.safetensors", b"\0" * 9, -1, "files and sizes", "rank3.safetensors: expected"),
        ("rank0.safetensors", None, 0, "files and sizes", "rank0.safetensors: missing"),
        ("manifest.json", None, 0, "config and manifest", "it has no manifest.json"),
    ],
)
def test_damage_is_found_and_named(
    tmp_path: Path,
    engines: dict[str, Path],
    file: str,
    data: bytes | None,
    at: int,
    check: str,
    message: str,
) -> None:
    assert verify(engines["nvfp4"]).is_ok
    found = verify(damaged(tmp_path, engines["nvfp4"], file, data, at))
    assert [item.name for item in found.checks if not item.is_ok] == [check]
    with pytest.raises(EngineError, match=message):
        found.raise_if_wrong()


def test_a_config_that_cannot_be_read(tmp_path: Path, engines: dict[str, Path]) -> None:
    """config.json tells engines from checkpoints, so nothing else can be said."""
    with pytest.raises(CheckpointError, match=r"config.json: cannot be read as JSON"):
        verify(damaged(tmp_path, engines["nvfp4"], "config.json", b"!", 0))


def test_a_stray_file_and_a_foreign_rank_file(tmp_path: Path, engines: dict[str, Path]) -> None:
    copy = copy_of(engines["nvfp4"], tmp_path / "copy")
    (copy / "notes.txt").write_text("x", encoding="utf-8")
    with pytest.raises(EngineError, match=r"notes.txt: not listed in manifest.json"):
        verify(copy).raise_if_wrong()
    (copy / "notes.txt").unlink()
    # A whole engine file, rightly hashed, of another layout.
    other = engines["fp8"] / "rank0.safetensors"
    (copy / "rank0.safetensors").write_bytes(other.read_bytes())
    manifest = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
    theirs = json.loads((engines["fp8"] / "manifest.json").read_text(encoding="utf-8"))
    entry = next(e for e in theirs["files"] if e["name"] == "rank0.safetensors")
    manifest["files"] = [e if e["name"] != entry["name"] else entry for e in manifest["files"]]
    (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    found = verify(copy)
    wrong = [item.name for item in found.checks if not item.is_ok]
    assert wrong == ["tensors of every rank"]


def test_verify_many_wants_engines(model: Path, engines: dict[str, Path]) -> None:
    with pytest.raises(EngineError, match="expected an engine, found a checkpoint"):
        verify_many([engines["bf16"], model], model)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_verify_on_the_command_line(
    tmp_path: Path, beam_tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_module, "NUM_TEXTS", 2)
    monkeypatch.setattr(compare_module, "MAX_TOKENS", 80)
    build_engine(
        beam_tiny, tmp_path / "engine", QuantConfig(Precision.BF16), Mapping(2), BuildConfig(1024)
    )
    done = run("verify", tmp_path, "--reference", beam_tiny, "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["is_ok"]
    assert answer["comparison"]["num_tokens"] == 160
    assert answer["comparison"]["kl"] < 0.01
    done = run("verify", beam_tiny, "--reference", beam_tiny)
    assert done.exit_code == 0, done.output
    assert "top-1" in done.stdout
    assert "tokenizer and chat template" in done.stdout
    with (tmp_path / "engine" / "rank1.safetensors").open("ab") as file:
        file.write(b"x")
    done = run("verify", tmp_path)
    assert done.exit_code == 1
    assert "the file was cut or replaced" in done.stderr
    assert "Traceback" not in done.output
    done = run("verify", tmp_path / "nowhere")
    assert done.exit_code == 1
    assert "expected a folder, found nothing" in done.stderr


def test_inspect_counts_what_transformers_counts(model: Path, engines: dict[str, Path]) -> None:
    reference = BeamForCausalLM.from_pretrained(model)
    numbers = dict(reference.named_parameters())
    numbers |= {n: b for n, b in reference.named_buffers() if "e_score_correction_bias" in n}
    for path in (model, *engines.values()):
        found = inspect(path)
        assert found.num_parameters == sum(number.numel() for number in numbers.values())
        parts = {part.name: part.num_parameters for part in found.parts}
        experts = sum(n.numel() for name, n in numbers.items() if ".mlp.experts." in name)
        assert parts["experts"] == experts


@pytest.mark.parametrize("precision", ["bf16", "fp8", "nvfp4"])
def test_inspect_counts_the_bytes_of_the_files(engines: dict[str, Path], precision: str) -> None:
    found = inspect(engines[precision])
    for rank, num_bytes in enumerate(found.rank_bytes):
        path = engines[precision] / f"rank{rank}.safetensors"
        header = int.from_bytes(path.read_bytes()[:8], "little")
        assert num_bytes == path.stat().st_size - 8 - header
    assert sum(found.rank_bytes) == found.num_bytes
    expected = {"bf16": ("BF16",), "fp8": ("F32", "F8_E4M3"), "nvfp4": ("F32", "F8_E4M3", "U8")}
    experts = next(part for part in found.parts if part.name == "experts")
    assert experts.dtypes == expected[precision]


def test_inspect_on_the_command_line(tmp_path: Path, model: Path, engines: dict[str, Path]) -> None:
    done = run("inspect", engines["nvfp4"])
    assert done.exit_code == 0, done.output
    assert "full attention in layers 5; the other 5 of 6 slide over 64 tokens" in done.stdout
    assert "dense in layers 0-2; experts in 3-5 (2 of 8)" in done.stdout
    assert "rank 3:" in done.stdout
    answer = json.loads(run("inspect", model, "--json").stdout)
    assert (answer["kind"], answer["precision"], answer["rank_bytes"]) == ("checkpoint", "bf16", [])
    done = run("inspect", tmp_path)
    assert done.exit_code == 1
    assert "neither a checkpoint nor an engine" in done.stderr
    write_random_checkpoint(tmp_path / "cut", QuantConfig(Precision.BF16))
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    done = run("inspect", tmp_path / "cut")
    assert done.exit_code == 1
    assert "truncated" in done.stderr
