"""Strict YAML: every way to write a key wrong is refused with the key's place."""

from pathlib import Path

import pytest

from beam_trt.config.deployment import DeploymentConfig
from beam_trt.config.load import load_yaml, parse_yaml
from beam_trt.config.quant import Precision
from beam_trt.errors import ConfigError


def test_values_arrive_where_they_belong() -> None:
    text = "precision: nvfp4\nmapping: {tp_size: 4, ep_size: 2}\nbuild: {max_seq_len: null}\n"
    found = parse_yaml(text, DeploymentConfig, "x.yaml")
    assert found.precision is Precision.NVFP4
    assert (found.mapping.tp_size, found.mapping.ep_size) == (4, 2)
    assert found.build.max_seq_len is None
    assert found.build.tokens_per_block == 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("precision: fp8\nmaping: {}", "x.yaml: maping: unknown key. Did you mean mapping?"),
        ("precision: fp8\nmapping: {tp_sise: 2}", "mapping.tp_sise: unknown key. Did you mean tp"),
        ("precision: fp8\nzzz: 1", "x.yaml: zzz: unknown key. Known keys: precision, "),
        ("precision: fp8\nmapping: {tp_size: '2'}", "mapping.tp_size: expected a whole number"),
        ("precision: fp8\nmapping: {tp_size: true}", "expected a whole number, found True"),
        ("precision: fp8\nmapping: {tp_size: 2.0}", "expected a whole number, found 2.0"),
        ("precision: fp8\nmapping: [2]", "mapping: expected keys and values, found a list"),
        ("precision: fp8\ngpu: 3", "x.yaml: gpu: expected text or null, found 3"),
        ("precision: fp8\nprecision: bf16", "key 'precision' is there twice"),
        ("precision: fp8\n1: 2", "expected a name as key, found 1"),
        ("precision: fp5", "precision: expected one of nvfp4, fp8, bf16, fp32, found 'fp5'"),
        ("precision: [", "x.yaml: not valid YAML"),
        ("precision: !!python/object/apply:os.getcwd []", "x.yaml: not valid YAML"),
        ("", "x.yaml: precision: missing; it has no default"),
        ("- a", "x.yaml: expected keys and values, found a list"),
        ("precision: bf16\nexperts_only: true", "experts_only: only means something"),
        ("precision: fp8\nmapping: {tp_size: 3, ep_size: 2}", "ep_size must divide tp_size"),
        ("precision: fp8\ncalibration: {num_samples: 0}", "expected at least 1, found 0"),
    ],
)
def test_what_is_wrong_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_yaml(text, DeploymentConfig, "x.yaml")
    assert message in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"precision: \xe9")
    for name in ("missing.yaml", "latin.yaml"):
        with pytest.raises(ConfigError, match=rf"{name}: cannot be read"):
            load_yaml(tmp_path / name, DeploymentConfig)
