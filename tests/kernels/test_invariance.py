"""Batch invariance to the bit: what a token gets does not depend on its batch, its place in it, or
on how its context was cut. Whole models are tested in tests/unit/model/test_invariance.py."""

from typing import Any

import pytest
import torch
from beam_trt_plugins import row_tiles
from beam_trt_plugins.hybrid_attention.plan import KV_TILE
from reference.op_cases import attention_case, moe_case
from test_registration import samples

ops = torch.ops.beam_trt


@pytest.fixture(params=[1, 2], ids=["1-thread", "2-threads"])
def threads(request: pytest.FixtureRequest) -> int:
    torch.set_num_threads(request.param)
    return int(request.param)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("rows", [1, 17, 50])
@pytest.mark.parametrize("inner", [2, 17, 128, 640])
@pytest.mark.parametrize("columns", [1, 7, 33, 128, 768])
def test_matmul_rows(rows: int, inner: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(inner)
    x = torch.randn(rows, inner, generator=generator)
    weight_t = row_tiles.prepare_weight(torch.randn(columns, inner, generator=generator))
    together = row_tiles.matmul(x, weight_t, columns)
    alone = torch.cat([row_tiles.matmul(x[i : i + 1], weight_t, columns) for i in range(rows)])
    order = torch.randperm(rows, generator=generator)
    assert torch.equal(together, alone)
    assert torch.equal(row_tiles.matmul(x[order], weight_t, columns), together[order])


@pytest.mark.parametrize("size", [1, 5, 16, 31, 1000])
def test_activations_do_not_depend_on_place(size: int) -> None:
    x = 5 * torch.randn(size, generator=torch.Generator().manual_seed(size))
    for function in (row_tiles.sigmoid, row_tiles.silu):
        alone = torch.cat([function(x[i : i + 1]) for i in range(size)])
        assert torch.equal(function(x), alone)


ROW_OPS = {  # positions of the arguments that have one row a token
    "rms_norm": (0,),
    "norm_boundary": (0, 1),
    "linear": (0,),
    "linear_fp8": (0,),
    "linear_nvfp4": (0,),
    "position_terms": (0,),
    "router": (0,),
    "moe": (0, 3, 4),
    "moe_fp8": (0, 5, 6),
    "moe_nvfp4": (0, 9, 10),
    "swiglu": (0,),
    "logits": (0,),
}


@pytest.mark.parametrize("rows", [1, 4, 16, 40])
@pytest.mark.parametrize("name", ROW_OPS)
def test_rows(name: str, rows: int) -> None:
    """40 different rows at once, in parts of `rows`, and shuffled."""
    op = getattr(ops, name)
    args = list(samples()[name])
    for at in ROW_OPS[name]:
        repeats = -(-40 // args[at].shape[0])
        stacked = torch.cat([args[at]] * repeats)[:40]
        wave = torch.linspace(0.5, 2, 40, dtype=torch.float32)
        if stacked.is_floating_point():
            stacked = (stacked * wave.view(-1, *[1] * (stacked.ndim - 1))).to(stacked.dtype)
        args[at] = stacked

    def run(choose: torch.Tensor) -> list[torch.Tensor]:
        chosen = [a[choose] if i in ROW_OPS[name] else a for i, a in enumerate(args)]
        out = op(*chosen)
        return list(out) if isinstance(out, list | tuple) else [out]

    together = run(torch.arange(40))
    parts = [run(part) for part in torch.arange(40).split(rows)]
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    for i, (whole, shuffled) in enumerate(zip(together, run(order), strict=True)):
        assert torch.equal(torch.cat([part[i] for part in parts]), whole), name
        assert torch.equal(shuffled, whole[order]), name


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("experts", [4, 80])
def test_experts_of_few_and_many_tokens(experts: int) -> None:
    """One tile for all, tiles by expert, and few experts of many all give a row the same bits."""
    case = moe_case(200, experts=experts, top_k=3)
    whole = ops.moe(*case.values(), 0)
    for size in (5, 16, 100):
        pieces = [
            ops.moe(
                case["x"][part], case["gate_up"], case["down"],
                case["expert_idx"][part], case["expert_weights"][part], 0,
            )
            for part in torch.arange(200).split(size)
        ]  # fmt: skip
        assert torch.equal(torch.cat(pieces), whole), size


def _slice(case: dict[str, Any], first: int, end: int, context_len: int) -> torch.Tensor:
    """Tokens first..end of a one-request case as their own step."""
    part = case | {
        "q": case["q"][first:end],
        "gate": case["gate"][first:end],
        "query_starts": torch.tensor([0, end - first], dtype=torch.int32),
        "context_lens": torch.tensor([context_len], dtype=torch.int32),
    }
    return ops.hybrid_attention(*part.values())


@pytest.mark.parametrize(("heads", "dim"), [(2, 32), (6, 10), (20, 2)])
@pytest.mark.parametrize("window", [0, 2, 70])
def test_attention_chunks(window: int, heads: int, dim: int) -> None:
    length = KV_TILE + 22
    case = attention_case([length], [length], window, heads=heads, kv_heads=2, dim=dim)
    whole = ops.hybrid_attention(*case.values())
    for size in (1, 5, 33, 64):
        chunks = [
            _slice(case, start, min(start + size, length), min(start + size, length))
            for start in range(0, length, size)
        ]
        assert torch.equal(torch.cat(chunks), whole), size


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("window", [0, 64])
def test_attention_company(window: int) -> None:
    """Each request of a mixed batch as if it were alone."""
    context_lens, query_lens = [300, 1, 64, 65, 190, 77], [1, 1, 64, 3, 90, 1]
    case = attention_case(context_lens, query_lens, window)
    together = ops.hybrid_attention(*case.values()).split(query_lens)
    starts = case["query_starts"].tolist()
    for request, (context_len, expected) in enumerate(zip(context_lens, together, strict=True)):
        alone = case | {"block_table": case["block_table"][request : request + 1]}
        assert torch.equal(
            _slice(alone, starts[request], starts[request + 1], context_len), expected
        )
