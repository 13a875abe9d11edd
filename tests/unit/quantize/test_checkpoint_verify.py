"""The verifier against healthy checkpoints and against each fault it is there for."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensors import rewrite

from beam_trt import quantize
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.quantize.verify import verify

Tensors = dict[str, torch.Tensor]
Q_PROJ = "model.layers.0.self_attn.q_proj"
EXPERT = "model.layers.4.mlp.experts.7"


@pytest.fixture(scope="module")
def made(
    source: Path,
    samples: list[list[int]],
    beam_tiny: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    """One healthy checkpoint of each kind, with the tokenizer files of beam-tiny."""
    folder = tmp_path_factory.mktemp("verify")
    kinds = {
        "nvfp4": QuantConfig(Precision.NVFP4),
        "nvfp4 experts": QuantConfig(Precision.NVFP4, experts_only=True),
        "fp8": QuantConfig(Precision.FP8),
        "fp8 experts": QuantConfig(Precision.FP8, experts_only=True),
        "bf16": QuantConfig(Precision.BF16),
    }
    with_tokenizer = Path(shutil.copytree(source, folder / "source"))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(beam_tiny / name, with_tokenizer)
    for kind, quant in kinds.items():
        quantize.run(with_tokenizer, folder / kind, quant, samples)
    return {kind: folder / kind for kind in kinds}


def problems(folder: Path) -> list[str]:
    return [problem for check in verify(folder) for problem in check.problems]


@pytest.mark.parametrize("kind", ["nvfp4", "nvfp4 experts", "fp8", "fp8 experts", "bf16"])
def test_healthy(made: dict[str, Path], kind: str) -> None:
    checks = verify(made[kind])
    assert problems(made[kind]) == []
    assert all(check.is_ok for check in checks)
    assert len(checks) >= 5


def set_scalar(name: str, value: float) -> Callable[[Path], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = torch.tensor(value)

    return lambda folder: rewrite(folder, change)


def poke(name: str, value: int) -> Callable[[Path], None]:
    """Put one raw byte into a tensor."""

    def change(tensors: Tensors) -> None:
        tensors[name].view(torch.uint8)[0, 0] = value

    return lambda folder: rewrite(folder, change)


def drop(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        rewrite(folder, lambda tensors: tensors.pop(name))
        edit("model.safetensors.index.json", lambda v: v["weight_map"].pop(name))(folder)

    return damage


def edit(file: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        value = json.loads((folder / file).read_text())
        change(value)
        (folder / file).write_text(json.dumps(value))

    return damage


def unlink(file: str) -> Callable[[Path], None]:
    return lambda folder: (folder / file).unlink()


def exclude(pattern: str) -> Callable[[Path], None]:
    """Add an exclude pattern to both files that hold one."""

    def damage(folder: Path) -> None:
        edit("config.json", lambda v: v["quantization_config"]["ignore"].append(pattern))(folder)
        if (folder / "hf_quant_config.json").exists():
            change = edit(
                "hf_quant_config.json",
                lambda v: v["quantization"]["exclude_modules"].append(pattern),
            )
            change(folder)

    return damage


def router_to_bf16(folder: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["model.layers.4.mlp.gate.weight"] = tensors[
            "model.layers.4.mlp.gate.weight"
        ].bfloat16()

    rewrite(folder, change)


FAULTS: list[tuple[str, Callable[[Path], None], str]] = [
    (
        "nvfp4",
        drop(f"{EXPERT}.up_proj.input_scale"),
        f"missing tensor {EXPERT}.up_proj.input_scale",
    ),
    ("nvfp4", drop(f"{Q_PROJ}.weight_scale"), f"missing tensor {Q_PROJ}.weight_scale"),
    ("nvfp4", drop(f"{Q_PROJ}.weight_scale_2"), f"missing tensor {Q_PROJ}.weight_scale_2"),
    (
        "nvfp4",
        set_scalar(f"{EXPERT}.up_proj.weight_scale_2", 0.5),
        f"{EXPERT}.gate_proj.weight_scale_2: expected one value for all that runtimes fuse",
    ),
    (
        "nvfp4",
        set_scalar(f"{Q_PROJ}.input_scale", 0.5),
        f"{Q_PROJ}.input_scale: expected one value for all that runtimes fuse, found q_proj 0.5",
    ),
    (
        "nvfp4",
        set_scalar(f"{EXPERT}.down_proj.input_scale", 0.0),
        f"{EXPERT}.down_proj.input_scale: expected finite and > 0, found 0.0",
    ),
    (
        "nvfp4",
        set_scalar(f"{EXPERT}.down_proj.weight_scale_2", float("nan")),
        f"{EXPERT}.down_proj.weight_scale_2: expected finite and > 0, found nan",
    ),
    (
        "nvfp4",
        poke(f"{Q_PROJ}.weight_scale", 0),
        f"{Q_PROJ}.weight_scale: expected finite and > 0, found 0.0 at [0, 0] and 0 more",
    ),
    ("nvfp4", poke(f"{Q_PROJ}.weight_scale", 0x7F), "expected finite and > 0, found nan at [0, 0]"),
    ("nvfp4", router_to_bf16, "expected the router in F32, found BF16"),
    (
        "nvfp4",
        exclude("model.layers.0*"),
        "is quantized, but the exclude pattern 'model.layers.0*'",
    ),
    (
        "nvfp4",
        edit("hf_quant_config.json", lambda v: v["quantization"].update(quant_algo=None)),
        "expected quant_algo NVFP4, found None",
    ),
    (
        "nvfp4",
        edit("hf_quant_config.json", lambda v: v["quantization"]["exclude_modules"].pop()),
        "its exclude_modules differ from config.json's ignore list",
    ),
    ("nvfp4", unlink("hf_quant_config.json"), "expected ModelOpt's quantization settings"),
    (
        "nvfp4",
        edit("config.json", lambda v: v.pop("quantization_config")),
        "expected a quantization_config, found none",
    ),
    (
        "nvfp4 experts",
        edit("config.json", lambda v: v["quantization_config"]["ignore"].remove("lm_head")),
        "lm_head is not quantized, but no exclude pattern matches it",
    ),
    ("fp8", exclude("re:.*o_proj"), "o_proj is quantized, but the exclude pattern 're:.*o_proj'"),
    (
        "fp8",
        edit("config.json", lambda v: v["quantization_config"]["ignore"].pop()),
        "model.layers.4.mlp.gate is not quantized, but no exclude pattern matches it",
    ),
    ("fp8", poke(f"{Q_PROJ}.weight", 0xFF), f"{Q_PROJ}.weight: expected E4M3 numbers, found NaN"),
    (
        "fp8",
        lambda folder: rewrite(folder, lambda t: t[f"{Q_PROJ}.weight_scale"].zero_()),
        f"{Q_PROJ}.weight_scale: expected finite and > 0, found 0.0 at [0, 0] and 127 more",
    ),
    ("fp8", unlink("tokenizer.json"), "expected tokenizer.json, found none"),
    ("fp8", unlink("tokenizer_config.json"), "expected tokenizer_config.json, found none"),
    ("fp8", unlink("chat_template.jinja"), "expected chat_template.jinja, found no chat template"),
    (
        "fp8",
        edit("tokenizer_config.json", lambda v: v.update(chat_template="another")),
        "two different chat templates",
    ),
    (
        "fp8",
        lambda folder: (folder / "tokenizer_config.json").write_text("{"),
        "tokenizer_config.json: cannot be read as JSON",
    ),
    ("fp8", unlink("model.safetensors.index.json"), "expected model.safetensors"),
    ("bf16", unlink("config.json"), "it has no config.json"),
]


@pytest.mark.parametrize(
    ("kind", "damage", "expected"), FAULTS, ids=[f"{k}: {e[:50]}" for k, _, e in FAULTS]
)
def test_faults(
    made: dict[str, Path], tmp_path: Path, kind: str, damage: Callable[[Path], None], expected: str
) -> None:
    folder = Path(shutil.copytree(made[kind], tmp_path / "damaged"))
    damage(folder)
    found = problems(folder)
    assert any(expected in problem for problem in found), found


def test_number_of_problems_is_limited(made: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made["fp8"], tmp_path / "damaged"))

    def zero(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            if name.endswith("weight_scale"):
                tensor.zero_()

    rewrite(folder, zero)
    assert len(problems(folder)) == 20


def test_headers_alone_do_not_see_values(made: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made["nvfp4"], tmp_path / "damaged"))
    poke(f"{Q_PROJ}.weight_scale", 0)(folder)
    assert all(check.is_ok for check in verify(folder, values=False))
    set_scalar(f"{Q_PROJ}.input_scale", -1.0)(folder)
    assert not all(check.is_ok for check in verify(folder, values=False))
