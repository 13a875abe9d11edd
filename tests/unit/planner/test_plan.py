"""The planner against published and independently computed figures."""

import json

import pytest
from click.testing import CliRunner

from beam_trt.cli.main import main
from beam_trt.config.hardware import Gpu
from beam_trt.config.mapping import Mapping
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.errors import ConfigError
from beam_trt.planner.memory import kv_cost, weights_by_part
from beam_trt.planner.plan import Deployment, make_plan
from beam_trt.planner.roofline import Roofline, Step, distinct_experts
from beam_trt.planner.shapes import beam_501b

BEAM = beam_501b()


def deployment(precision: str, tp: int, gpu: str, **changes: int) -> Deployment:
    values = {"context": 131072} | changes
    quant = QuantConfig(Precision(precision))
    return Deployment(BEAM, quant, Mapping(tp_size=tp), Gpu.named(gpu), **values)


def test_published_sizes() -> None:
    total = {
        precision: sum(weights_by_part(BEAM, QuantConfig(precision), Mapping()).values())
        for precision in (Precision.BF16, Precision.NVFP4)
    }
    assert total[Precision.BF16] == pytest.approx(501.27e9 * 2, rel=1e-3)
    experts = weights_by_part(BEAM, QuantConfig(Precision.NVFP4), Mapping())["experts"]
    assert experts == pytest.approx(277.4e9, rel=2e-3)
    assert weights_by_part(BEAM, QuantConfig(Precision.BF16), Mapping())["experts"] == (
        pytest.approx(986.5e9, rel=1e-3)
    )


def test_published_kv_per_token() -> None:
    whole = kv_cost(BEAM, Mapping())
    assert whole.full_per_token == 36 * 1024
    assert whole.full_per_token + whole.sliding_per_token == 208 * 1024
    assert whole.window * whole.sliding_per_token == 86 * 2**20
    assert kv_cost(BEAM, Mapping(tp_size=8)).full_per_token == 4.5 * 1024
    assert kv_cost(BEAM, Mapping(tp_size=16)).full_per_token == 4.5 * 1024  # KV heads replicated


@pytest.mark.parametrize(
    ("context", "batch", "milliseconds"),
    [
        (8192, 1, 1.18), (8192, 8, 4.09), (8192, 32, 10.5), (8192, 128, 17.4), (8192, 256, 20.3),
        (75776, 1, 1.25), (75776, 8, 4.66), (75776, 32, 12.8), (75776, 256, 38.8),
        (262144, 32, 19.2), (262144, 256, 89.9),
    ],
)  # fmt: skip
def test_decode_floors_of_an_fp8_tp8_rank(context: int, batch: int, milliseconds: float) -> None:
    roofline = Roofline(BEAM, QuantConfig(Precision.FP8), Mapping(tp_size=8), Gpu.named("h200"))
    floor = sum(roofline.step_us(Step(batch, context)).values()) / 1e3
    assert floor == pytest.approx(milliseconds, rel=0.01)


def test_prefill_floor() -> None:
    roofline = Roofline(BEAM, QuantConfig(Precision.FP8), Mapping(tp_size=8), Gpu.named("h200"))
    times = roofline.step_us(Step(8192, 8192, is_decode=False, num_logits=1))
    assert sum(times.values()) / 1e3 == pytest.approx(94.9, rel=0.01)
    assert (sum(times.values()) - times["all-reduce x2"]) / 1e3 == pytest.approx(56, rel=0.01)


def test_distinct_experts() -> None:
    hit = [round(distinct_experts(BEAM, n)) for n in (1, 8, 32, 128, 256)]
    assert hit == [8, 57, 163, 252, 256]


@pytest.mark.parametrize(
    ("precision", "tp", "gpu", "is_tight"),
    [
        ("bf16", 16, "h200", False), ("bf16", 8, "h200", True),
        ("fp8", 8, "h200", False), ("nvfp4", 2, "b200", True), ("nvfp4", 4, "b200", False),
        ("nvfp4", 8, "rtx_pro_6000", False), ("nvfp4", 4, "h200", False),
    ],
)  # fmt: skip
def test_published_deployments(precision: str, tp: int, gpu: str, is_tight: bool) -> None:
    assert make_plan(deployment(precision, tp, gpu)).is_tight == is_tight


def test_impossible_plan_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"2 x H200 SXM cannot hold this: .* --tp 16 on h200"):
        make_plan(deployment("bf16", 2, "h200", concurrency=16))
    with pytest.raises(ConfigError, match=r"GB; \d+ would fit\. Nearest that fits: --tp"):
        make_plan(deployment("fp8", 8, "h200", concurrency=150))


def test_ep_must_divide_the_experts() -> None:
    mapping = Mapping(tp_size=12, ep_size=3)
    quant = QuantConfig(Precision.BF16)
    with pytest.raises(ConfigError, match="256 experts % ep_size 3"):
        make_plan(Deployment(BEAM, quant, mapping, Gpu.named("h200"), context=4096))


def test_command_prints_a_table_and_json() -> None:
    args = ["plan", "--shape", "beam-501b", "--precision", "nvfp4", "--tp", "4", "--gpu", "b200"]
    shown = CliRunner().invoke(main, args)
    assert shown.exit_code == 0, shown.output
    assert "fits: at most" in shown.output
    as_json = CliRunner().invoke(main, [*args, "--json"])
    made = json.loads(as_json.output)
    assert made["kv_bytes_per_gpu"]["full_per_token"] == 9 * 1024
    assert made["max_concurrency"] > 16


def test_command_refuses_with_exit_code_one() -> None:
    args = ["plan", "--shape", "beam-501b", "--precision", "bf16", "--tp", "2", "--gpu", "h200"]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 1
    assert "cannot hold this" in result.output
    neither = CliRunner().invoke(main, ["plan", "--gpu", "h200"])
    assert neither.exit_code == 1
    assert "either MODEL" in neither.output
