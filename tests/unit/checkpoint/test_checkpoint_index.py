"""Opening a checkpoint: what it answers, and every way in which it can be damaged."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from beam_trt.checkpoint.header import read_header
from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.config.quant import Precision
from beam_trt.errors import BeamTrtError, CheckpointError

EditJson = Callable[[Path, Callable[[Any], None]], None]


def message(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        CheckpointIndex.open(folder)
    return str(caught.value)


def some_shard(folder: Path) -> Path:
    return sorted(folder.glob("*.safetensors"))[0]


def write_raw(path: Path, header: Any, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_names_dtypes_shapes_are_those_of_the_safetensors_library(checkpoint: Path) -> None:
    index = CheckpointIndex.open(checkpoint)
    seen = {}
    for file in checkpoint.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                part = opened.get_slice(name)
                seen[name] = (part.get_dtype(), tuple(part.get_shape()), file)
    assert len(index.files) > 3
    assert {n: (t.dtype, t.shape, t.file) for n, t in index.tensors.items()} == seen
    assert index.precision is Precision.BF16
    assert index.config.num_hidden_layers == 4
    weights = {n: t for f in index.files for n, t in load_file(f).items()}
    assert index.num_bytes == sum(t.nbytes for t in weights.values())


def test_opening_needs_no_torch(checkpoint: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from beam_trt.checkpoint.index import CheckpointIndex\n"
        "from beam_trt.checkpoint.output import atomic_output\n"
        "from beam_trt.checkpoint.validate import validate\n"
        "validate(CheckpointIndex.open(Path(sys.argv[1])))\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code, str(checkpoint)], check=True)


def test_identity_depends_on_contents_not_on_sharding(
    checkpoint: Path, single: Callable[[Any], Path], edit_json: EditJson
) -> None:
    sharded = CheckpointIndex.open(checkpoint).identity()
    one_file = single(lambda tensors: None)
    assert CheckpointIndex.open(one_file).identity() == sharded
    edit_json(one_file / "config.json", lambda config: config.update(rms_norm_eps=1e-5))
    assert CheckpointIndex.open(one_file).identity() != sharded


def test_identity_sees_dtypes(checkpoint: Path, single: Callable[[Any], Path]) -> None:
    def widen(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"].float()

    widened = CheckpointIndex.open(single(widen))
    assert widened.identity() != CheckpointIndex.open(checkpoint).identity()


def test_no_such_folder(tmp_path: Path) -> None:
    assert "no such folder" in message(tmp_path / "nowhere")


def test_folder_without_config(tmp_path: Path) -> None:
    assert "no config.json" in message(tmp_path)


def test_config_that_is_no_json(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text("{")
    assert "cannot be read as JSON" in message(checkpoint)


def test_other_model(checkpoint: Path, edit_json: EditJson) -> None:
    edit_json(checkpoint / "config.json", lambda config: config.update(model_type="qwen3"))
    text = message(checkpoint)
    assert "not a Beam checkpoint" in text
    assert "'qwen3', expected 'beam'" in text


def test_pickled_weights(checkpoint: Path) -> None:
    for file in checkpoint.glob("model*"):
        file.unlink()
    (checkpoint / "pytorch_model.bin").write_bytes(b"")
    text = message(checkpoint)
    assert "found pytorch_model.bin" in text
    assert "save_pretrained" in text


def test_missing_shard(checkpoint: Path) -> None:
    lost = some_shard(checkpoint)
    lost.unlink()
    assert f"shard {lost.name} is missing" in message(checkpoint)


def test_truncated_shard(checkpoint: Path) -> None:
    shard = some_shard(checkpoint)
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    text = message(checkpoint)
    assert f"{shard}: truncated: its header needs {len(whole)} bytes" in text
    assert f"the file has {len(whole) - 100}" in text


@pytest.mark.parametrize("kept", [0, 4, 8, 50])
def test_shard_cut_inside_its_header(checkpoint: Path, kept: int) -> None:
    shard = some_shard(checkpoint)
    shard.write_bytes(shard.read_bytes()[:kept])
    text = message(checkpoint)
    assert str(shard) in text
    assert f"found a file of {kept}" in text


def test_shard_with_trailing_bytes(checkpoint: Path) -> None:
    shard = some_shard(checkpoint)
    shard.write_bytes(shard.read_bytes() + b"x")
    assert f"{shard}: too long" in message(checkpoint)


def test_index_names_a_tensor_no_shard_holds(checkpoint: Path, edit_json: EditJson) -> None:
    shard = some_shard(checkpoint).name
    index = checkpoint / "model.safetensors.index.json"
    edit_json(index, lambda value: value["weight_map"].update(ghost=shard))
    assert f"says that ghost is in {shard}, but no shard holds it" in message(checkpoint)


def test_index_names_the_wrong_shard(checkpoint: Path, edit_json: EditJson) -> None:
    index = checkpoint / "model.safetensors.index.json"
    other = sorted(checkpoint.glob("*.safetensors"))[-1].name

    def move(value: Any) -> None:
        value["weight_map"]["model.embed_tokens.weight"] = other

    truth = CheckpointIndex.open(checkpoint).tensors["model.embed_tokens.weight"].file.name
    edit_json(index, move)
    assert f"is in {other}, but {truth} holds it" in message(checkpoint)


def test_index_leaves_a_tensor_out(checkpoint: Path, edit_json: EditJson) -> None:
    index = checkpoint / "model.safetensors.index.json"
    edit_json(index, lambda value: value["weight_map"].pop("lm_head.weight"))
    assert "does not list lm_head.weight" in message(checkpoint)


def test_shard_that_is_not_in_the_index(checkpoint: Path) -> None:
    save_file({"x": torch.zeros(1)}, checkpoint / "model-00099-of-00099.safetensors")
    assert "model-00099-of-00099.safetensors is not in" in message(checkpoint)


def test_index_that_leaves_the_folder(checkpoint: Path, edit_json: EditJson) -> None:
    index = checkpoint / "model.safetensors.index.json"
    edit_json(index, lambda value: value["weight_map"].update(x="../elsewhere.safetensors"))
    assert "expected a file name in this folder" in message(checkpoint)


@pytest.mark.parametrize("text", ["[", "[]", "{}", '{"weight_map": {}}', "[" * 100_000])
def test_index_that_is_none(checkpoint: Path, text: str) -> None:
    (checkpoint / "model.safetensors.index.json").write_text(text)
    assert "model.safetensors.index.json" in message(checkpoint)


def test_tensor_in_two_shards(checkpoint: Path, edit_json: EditJson) -> None:
    index = checkpoint / "model.safetensors.index.json"
    save_file({"lm_head.weight": torch.zeros(1)}, checkpoint / "extra.safetensors")
    edit_json(index, lambda value: value["weight_map"].update(other="extra.safetensors"))
    assert "tensor lm_head.weight is in both" in message(checkpoint)


def test_unreadable_shard(checkpoint: Path) -> None:
    shard = some_shard(checkpoint)
    shard.unlink()
    shard.mkdir()
    text = message(checkpoint)
    assert f"{shard}: cannot be read: Is a directory" in text
    assert "this user may read it" in text


def test_symlink_loop(tmp_path: Path) -> None:
    path = tmp_path / "loop.safetensors"
    path.symlink_to(path)
    with pytest.raises(CheckpointError, match="cannot be read: Too many levels of symbolic links"):
        read_header(path)


TENSOR = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}

LIES: dict[str, tuple[Any, str]] = {
    "no JSON": (b"\xff\xfe", "expected a JSON header"),
    "no object": ([1], "no JSON object"),
    "deep": (b"[" * 100_000, "expected a JSON header"),
    "name twice": (
        b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
        b'"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}',
        "its header names 'a' twice",
    ),
    "dtype": ({"a": {**TENSOR, "dtype": "F7"}}, "a: expected a known dtype, found 'F7'"),
    "dtype type": ({"a": {**TENSOR, "dtype": ["U8"]}}, "a: expected a known dtype"),
    "entry type": ({"a": 3}, "a: expected a known dtype, found None"),
    "shape": ({"a": {**TENSOR, "shape": [5]}}, "U8 [5] takes 5 bytes, its offsets hold 4"),
    "negative": ({"a": {**TENSOR, "shape": [-4]}}, "expected a shape and two data offsets"),
    "absurd": ({"a": {**TENSOR, "shape": [2**62, 2**62]}}, "its header lies"),
    "offsets": ({"a": {**TENSOR, "data_offsets": [0]}}, "expected a shape and two data offsets"),
    "hole": ({"a": {**TENSOR, "data_offsets": [2, 6]}}, "it leaves a hole"),
    "overlap": ({"a": TENSOR, "b": {**TENSOR, "data_offsets": [2, 6]}}, "it overlaps"),
    "past the end": ({"a": TENSOR, "b": {**TENSOR, "data_offsets": [4, 8]}}, "truncated"),
}


@pytest.mark.parametrize("lie", LIES)
def test_header_that_lies(tmp_path: Path, lie: str) -> None:
    header, expected = LIES[lie]
    path = tmp_path / "model.safetensors"
    write_raw(path, header, b"\0" * 4)
    with pytest.raises(BeamTrtError) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)


def test_header_length_beyond_any_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(CheckpointError, match="truncated or no safetensors file"):
        read_header(path)


def declare(quantization: Any) -> Callable[[Any], None]:
    return lambda config: config.update(quantization_config=quantization)


@pytest.mark.parametrize(
    ("quantization", "found"),
    [
        ({"quant_method": "gptq"}, "quantization method 'gptq'"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "ModelOpt with quant_algo 'FP8'"),
        ({"quant_method": "modelopt"}, "ModelOpt with quant_algo None"),
        (
            {"quant_method": "compressed-tensors", "format": "pack-quantized"},
            "compressed-tensors with format 'pack-quantized'",
        ),
        ("nvfp4", "quantization method None"),
    ],
)
def test_unknown_quantization(
    checkpoint: Path, edit_json: EditJson, quantization: Any, found: str
) -> None:
    edit_json(checkpoint / "config.json", declare(quantization))
    text = message(checkpoint)
    assert f"found {found}" in text
    assert "Start from the BF16 checkpoint" in text


def test_quantized_tensors_without_a_word_about_it(single: Callable[[Any], Path]) -> None:
    def quantize(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.float8_e4m3fn)

    assert "lm_head.weight is F8_E4M3, but neither config.json nor" in message(single(quantize))


def test_damaged_hf_quant_config(checkpoint: Path) -> None:
    (checkpoint / "hf_quant_config.json").write_text("{}")
    assert "expected ModelOpt's quantization.quant_algo" in message(checkpoint)
