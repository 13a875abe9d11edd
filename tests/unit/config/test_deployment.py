"""The bundled deployments fit the models they are for, and GPUs are found by name."""

from dataclasses import replace
from pathlib import Path

import pytest

from beam_trt.config.deployment import bundled_deployments, load_deployment
from beam_trt.config.hardware import Gpu, gpus
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import Precision
from beam_trt.config.tensors import engine_tensors
from beam_trt.errors import ConfigError
from beam_trt.planner.shapes import named_shape


@pytest.fixture(scope="module")
def beam_501b() -> ModelConfig:
    """The published shape."""
    return named_shape("beam-501b")


def test_the_published_schedule(beam_501b: ModelConfig) -> None:
    full = [i for i in range(beam_501b.num_hidden_layers) if beam_501b.is_full(i)]
    assert full == [5, 11, 17, 23, 29, 35, 41, 47, 51]
    dense = [i for i in range(beam_501b.num_hidden_layers) if not beam_501b.is_moe(i)]
    assert dense == [0, 1, 2]


def test_every_deployment_is_bundled() -> None:
    assert bundled_deployments() == [
        "bf16_tp16_h200",
        "fp8_tp8_h200",
        "nvfp4_tp4_b200",
        "nvfp4_tp4_h200",
        "nvfp4_tp8_rtx_pro_6000",
        "tiny",
    ]


@pytest.mark.parametrize("name", bundled_deployments())
def test_a_bundled_deployment_says_what_its_name_says(name: str, beam_501b: ModelConfig) -> None:
    deployment = load_deployment(name)
    build = deployment.for_model(beam_501b)
    mapping = deployment.ranks(beam_501b)
    assert build.max_seq_len <= beam_501b.max_position_embeddings
    if name == "tiny":
        assert build.gpu is None
        return
    precision, ranks, gpu = name.split("_", 2)
    assert (deployment.precision, f"tp{mapping.tp_size}", build.gpu) == (precision, ranks, gpu)
    weights = sum(spec.num_bytes for spec in engine_tensors(beam_501b, deployment.quant, mapping))
    # Half of the memory at most, so that KV cache and activations have room.
    assert weights < 0.55 * Gpu.named(gpu).memory_gb * 1e9


def test_the_tiny_deployment_fits_beam_tiny(beam_tiny: Path) -> None:
    config = ModelConfig.from_folder(beam_tiny)
    deployment = load_deployment("tiny")
    assert deployment.for_model(config).max_seq_len == config.max_position_embeddings
    assert list(engine_tensors(config, deployment.quant, deployment.ranks(config)))


def test_an_unknown_deployment_names_the_bundled_ones() -> None:
    with pytest.raises(ConfigError, match=r"no such file.*Did you mean fp8_tp8_h200\?.*tiny"):
        load_deployment("fp8_tp8_h20")


def test_a_model_that_is_shorter_than_the_deployment_is_refused(beam_501b: ModelConfig) -> None:
    short = replace(beam_501b, max_position_embeddings=8192)
    with pytest.raises(ConfigError, match="max_position_embeddings 8192, found 131072"):
        load_deployment("nvfp4_tp4_h200").for_model(short)


def test_kv_dtype_follows_the_precision() -> None:
    tiny = load_deployment("tiny")
    assert tiny.build.kv_dtype is None
    config = ModelConfig.from_folder(Path(__file__).parents[3] / "beam_trt/assets/beam_tiny")
    assert tiny.for_model(config).kv_dtype == "bfloat16"
    assert replace(tiny, precision=Precision.FP32).for_model(config).kv_dtype == "float32"


def test_the_gpu_table_is_consistent() -> None:
    for name, gpu in gpus().items():
        assert name == gpu.name
        assert gpu.native_nvfp4 == (gpu.sm >= 100), "FP4 tensor cores came with Blackwell"
        assert gpu.native_fp8 == (gpu.sm >= 89), "FP8 tensor cores came with Ada"
        assert gpu.achievable_gb_s is None or gpu.achievable_gb_s < gpu.bandwidth_gb_s
        if gpu.fp8_tflops:
            # Each halving of the width doubles the dense rate or better.
            assert gpu.fp8_tflops >= 1.99 * gpu.bf16_tflops
    with pytest.raises(ConfigError, match=r"'rtx-pro-6000'.*Did you mean 'rtx_pro_6000'"):
        Gpu.named("rtx-pro-6000")
