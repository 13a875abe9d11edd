"""Reading tensors, and writing files that the safetensors library reads back."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.checkpoint.reader import CheckpointReader
from beam_trt.checkpoint.sidecars import copy_sidecars
from beam_trt.checkpoint.writer import ShardWriter, TensorFileWriter, plan_shards
from beam_trt.config.tensors import TensorSpec
from beam_trt.errors import CheckpointError

TENSORS = {
    "odd.bytes": torch.arange(7, dtype=torch.uint8),
    "scale": torch.tensor(0.25),
    "matrix": torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).bfloat16(),
    "fp8": torch.randn(3, 16, generator=torch.Generator().manual_seed(1)).to(torch.float8_e4m3fn),
    "empty": torch.empty(0, 4),
}
SPECS = [
    TensorSpec("odd.bytes", "U8", (7,)),
    TensorSpec("scale", "F32", ()),
    TensorSpec("matrix", "BF16", (5, 3)),
    TensorSpec("fp8", "F8_E4M3", (3, 16)),
    TensorSpec("empty", "F32", (0, 4)),
]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    as_bytes = [t.contiguous().reshape(-1).view(torch.uint8).tolist() for t in (a, b)]
    return bool(a.dtype == b.dtype and a.shape == b.shape and as_bytes[0] == as_bytes[1])


def test_reader_gives_what_the_safetensors_library_gives(checkpoint: Path) -> None:
    index = CheckpointIndex.open(checkpoint)
    with CheckpointReader(index) as reader:
        for file in index.files:
            for name, tensor in load_file(file).items():
                assert same(reader.tensor(name), tensor), name


def test_slices(checkpoint: Path) -> None:
    name = "model.layers.1.mlp.down_proj.weight"  # [64, 128]
    with CheckpointReader(CheckpointIndex.open(checkpoint)) as reader:
        whole = reader.tensor(name)
        assert torch.equal(reader.slice(name, rows=slice(16, 32)), whole[16:32])
        assert torch.equal(reader.slice(name, columns=slice(64, 128)), whole[:, 64:])
        both = reader.slice(name, slice(63, 64), slice(0, 1))
        assert torch.equal(both, whole[63:64, 0:1])
        assert both.is_contiguous()
        assert reader.slice(name, rows=slice(64, 64)).shape == (0, 128)
        bias = reader.tensor("model.layers.1.self_attn.gate_bias")
        part = reader.slice("model.layers.1.self_attn.gate_bias", rows=slice(2, 4))
        assert torch.equal(part, bias[2:4])


def test_missing_tensor(checkpoint: Path) -> None:
    with (
        CheckpointReader(CheckpointIndex.open(checkpoint)) as reader,
        pytest.raises(CheckpointError, match=r"tensor model\.nothing is missing"),
    ):
        reader.tensor("model.nothing")


def test_file_that_shrinks_after_opening(checkpoint: Path) -> None:
    index = CheckpointIndex.open(checkpoint)
    info = index.tensors["lm_head.weight"]
    info.file.write_bytes(info.file.read_bytes()[: info.offset + 10])
    with CheckpointReader(index) as reader, pytest.raises(CheckpointError) as caught:
        reader.tensor("lm_head.weight")
    assert f"{info.file}: cannot read lm_head.weight" in str(caught.value)
    assert f"ends {info.nbytes - 10} bytes too early" in str(caught.value)


@pytest.mark.parametrize("order", [list(TENSORS), list(reversed(TENSORS))])
def test_written_file_is_read_by_the_safetensors_library(tmp_path: Path, order: list[str]) -> None:
    path = tmp_path / "rank0.safetensors"
    writer = TensorFileWriter(path, SPECS)
    for name in order:
        writer.write(name, TENSORS[name])
    writer.close()
    read = load_file(path)
    assert read.keys() == TENSORS.keys()
    assert all(same(read[name], tensor) for name, tensor in TENSORS.items())
    with safe_open(path, "pt") as opened:
        assert opened.metadata() == {"format": "pt"}


def test_written_file_must_be_the_planned_one(tmp_path: Path) -> None:
    writer = TensorFileWriter(tmp_path / "a", SPECS)
    with pytest.raises(AssertionError, match="scale"):
        writer.write("scale", torch.tensor(1.0).bfloat16())
    with pytest.raises(AssertionError, match="matrix"):
        writer.write("matrix", torch.zeros(3, 5).bfloat16())
    writer.write("scale", TENSORS["scale"])
    with pytest.raises(AssertionError, match="written twice"):
        writer.write("scale", TENSORS["scale"])
    with pytest.raises(AssertionError, match="never written"):
        writer.close()


def test_shards_keep_order_and_limit() -> None:
    specs = [TensorSpec(str(i), "U8", (size,)) for i, size in enumerate((4, 4, 1, 20, 3, 5))]
    shards = [[spec.name for spec in shard] for shard in plan_shards(specs, 8)]
    assert shards == [["0", "1"], ["2"], ["3"], ["4", "5"]]


def test_sharded_checkpoint_has_a_complete_index(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, SPECS, max_shard_bytes=40)
    for name in reversed(TENSORS):
        writer.write(name, TENSORS[name])
    assert not (tmp_path / "model.safetensors.index.json").exists()
    writer.commit()
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    found = {}
    for file in sorted(tmp_path.glob("*.safetensors")):
        found.update(dict.fromkeys(load_file(file), file.name))
    assert index["weight_map"] == found
    assert len(set(found.values())) == 3
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in TENSORS.values())


def test_incomplete_shards_are_never_committed(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, SPECS, max_shard_bytes=40)
    writer.write("scale", TENSORS["scale"])
    with pytest.raises(AssertionError, match="incomplete shards"):
        writer.commit()
    writer.abandon()
    assert not (tmp_path / "model.safetensors.index.json").exists()


def test_sidecars(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    (source / "additional_chat_templates").mkdir(parents=True)
    target.mkdir()
    for name in ("tokenizer.json", "notes.md", "additional_chat_templates/x.jinja"):
        (source / name).write_text(name)
    assert copy_sidecars(source, target) == ["tokenizer.json", "additional_chat_templates/x.jinja"]
    assert (target / "additional_chat_templates/x.jinja").read_text().endswith("x.jinja")
    assert not (target / "notes.md").exists()
