"""Every op passes torch.library.opcheck: schema (what it mutates), fake implementation, export."""

from typing import Any

import beam_trt_plugins
import pytest
import torch
from reference.engine_weights import nvfp4_parts
from reference.op_cases import attention_case, moe_case


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def nvfp4(weight: torch.Tensor) -> list[torch.Tensor]:
    matrices = weight.view(-1, *weight.shape[-2:]).bfloat16()
    scale_2 = torch.full((matrices.shape[0],), 4 / (6 * 448))
    parts = [nvfp4_parts(m, s) for m, s in zip(matrices, scale_2, strict=True)]
    packed = torch.stack([p[0] for p in parts]).view(*weight.shape[:-1], -1)
    scale = torch.stack([p[1].view(torch.uint8) for p in parts]).view(*weight.shape[:-1], -1)
    return [packed, scale.view(torch.float8_e4m3fn), scale_2, torch.full_like(scale_2, 1 / 448)]


def fp8(weight: torch.Tensor) -> list[torch.Tensor]:
    return [weight.to(torch.float8_e4m3fn), noise(*weight.shape[:-1]).abs()]


def samples() -> dict[str, tuple[Any, ...]]:
    half = torch.bfloat16
    x, weight = noise(5, 48), noise(32, 48)
    moe = moe_case(5)
    routed = (moe["expert_idx"], moe["expert_weights"], 0)
    kv = torch.zeros(3, 2, 2, 16, 8)
    qkvg = noise(5, (2 * 4 + 2 * 2) * 8)
    slots = torch.tensor([7, 40, 3, 4, 5])
    return {
        "embedding": (torch.tensor([3, 9, 40]), weight, 8),
        "rms_norm": (x.to(half), noise(48).to(half), 1e-6),
        "norm_boundary": (x, x.to(half), noise(48), noise(48), 1e-6, 3, 2.5),
        "linear": (x.to(half), weight.to(half), half),
        "linear_fp8": (x.to(half), *fp8(weight), torch.float32),
        "linear_nvfp4": (x.to(half), *nvfp4(weight), half),
        "position_terms": (torch.arange(5), noise(4)),
        "qk_norm_rope_write": (
            qkvg, noise(8), noise(8), noise(5, 8), None, kv, slots, 4, 2, 1e-6
        ),
        "hybrid_attention": tuple(attention_case([20, 70], [4, 1], 9).values()),
        "router": (x, weight, noise(32), 4, 2, 3),
        "moe": (*moe.values(), 0),
        "moe_fp8": (moe["x"].to(half), *fp8(moe["gate_up"]), *fp8(moe["down"]), *routed),
        "moe_nvfp4": (moe["x"].to(half), *nvfp4(moe["gate_up"]), *nvfp4(moe["down"]), *routed),
        "swiglu": (x.to(half),),
        "logits": (x.to(half), weight.to(half), 30.0),
    }  # fmt: skip


def _checks(args: tuple[Any, ...]) -> tuple[str, ...]:
    """All of opcheck's tests, but for its schema test where an argument is E4M3: torch cannot
    compare such tensors with what they were."""
    has_fp8 = any(isinstance(a, torch.Tensor) and a.dtype == torch.float8_e4m3fn for a in args)
    others = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    return others if has_fp8 else ("test_schema", *others)


@pytest.mark.parametrize("name", beam_trt_plugins.OPS)
def test_opcheck(name: str) -> None:
    with torch.inference_mode(False):
        op, args = getattr(torch.ops.beam_trt, name).default, samples()[name]
        torch.library.opcheck(op, args, test_utils=_checks(args))


def test_the_nope_form_of_the_kv_write() -> None:
    with torch.inference_mode(False):
        args = list(samples()["qk_norm_rope_write"])
        args[3:5] = [None, noise(5)]
        torch.library.opcheck(torch.ops.beam_trt.qk_norm_rope_write.default, tuple(args))
