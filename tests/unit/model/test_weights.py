"""Loading a rank: what the file must hold, and what is said when it does not."""

import json
from pathlib import Path

import pytest
import torch
from checkpoints import random_model, small_config
from reference.engine_weights import engine_weights
from safetensors.torch import save_file

from beam_trt.config.build import BuildConfig
from beam_trt.config.mapping import Mapping
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.config.tensors import engine_tensors
from beam_trt.engine.manifest import EngineConfig
from beam_trt.errors import EngineError
from beam_trt.model.weights import load_rank

QUANTS = [
    QuantConfig(Precision.FP32),
    QuantConfig(Precision.BF16),
    QuantConfig(Precision.FP8),
    QuantConfig(Precision.NVFP4),
    QuantConfig(Precision.NVFP4, experts_only=True),
]
MAPPING = Mapping(tp_size=2, ep_size=2)


def write_engine(folder: Path, quant: QuantConfig) -> dict[str, torch.Tensor]:
    """Rank 1 of two, written without `engine.build`."""
    model = random_model(small_config())
    config = ModelConfig.from_hf(model.config.to_dict())
    engine = EngineConfig(folder, config, quant, MAPPING, BuildConfig(max_seq_len=512))
    (folder / "config.json").write_text(json.dumps(engine.to_dict()))
    weights = engine_weights(model, MAPPING.with_rank(1), quant)
    save_file(weights, folder / "rank1.safetensors")
    return weights


@pytest.mark.parametrize("quant", QUANTS, ids=lambda q: f"{q.precision}-{q.experts_only}")
def test_what_was_written_is_read(tmp_path: Path, quant: QuantConfig) -> None:
    weights = write_engine(tmp_path, quant)
    loaded = load_rank(tmp_path, 1)
    config = EngineConfig.load(tmp_path).model
    assert set(loaded) == {s.name for s in engine_tensors(config, quant, MAPPING.with_rank(1))}
    for name, tensor in weights.items():
        assert torch.equal(loaded[name].view(torch.uint8), tensor.contiguous().view(torch.uint8))


def test_a_missing_file_a_damaged_file_and_a_rank_too_many(tmp_path: Path) -> None:
    write_engine(tmp_path, QUANTS[0])
    with pytest.raises(EngineError, match=r"rank0\.safetensors: missing\..*build it again"):
        load_rank(tmp_path, 0)
    with pytest.raises(EngineError, match=r"rank 2 asked for, built for ranks 0\.\.1"):
        load_rank(tmp_path, 2)
    path = tmp_path / "rank1.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(EngineError, match=r"rank1\.safetensors: damaged: .*copy the file again"):
        load_rank(tmp_path, 1)


def test_tensors_that_do_not_belong(tmp_path: Path) -> None:
    weights = write_engine(tmp_path, QUANTS[1])
    path, name = tmp_path / "rank1.safetensors", "layers.3.moe.router"
    wrong = {
        r"1 tensors missing, first layers\.3\.moe\.router": {
            k: v for k, v in weights.items() if k != name
        },
        r"1 unexpected tensors, first extra": weights | {"extra": torch.zeros(1)},
        r"router: expected F32 \[16, 64\], found bfloat16 \[16, 64\]": weights
        | {name: weights[name].bfloat16()},
        r"router: expected F32 \[16, 64\], found float32 \[16, 32\]": weights
        | {name: weights[name][:, :32].contiguous()},
    }
    for message, tensors in wrong.items():
        save_file(tensors, path)
        with pytest.raises(EngineError, match=message + r".*build the engine again"):
            load_rank(tmp_path, 1)
