"""Registration of `hybrid_attention` and its CPU implementation: query tiles times KV tiles, each
with its own maximum and sum, then combined tile after tile."""

import itertools

import torch
from beam_trt_plugins.hybrid_attention.plan import KV_TILE, Plan, TileGroup, make_plan
from beam_trt_plugins.registry import define
from beam_trt_plugins.row_tiles import ROWS, sigmoid

_MASKED_MAX = -1e30
"""Maximum of a row that sees nothing of a tile: finite, so that no inf - inf arises, and low enough
that its weight exp(_MASKED_MAX - maximum) is exactly zero."""

_Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_plans: dict[tuple[int, int, int], tuple[_Inputs, Plan]] = {}


def _plan(
    block_table: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    tokens_per_block: int,
    window: int,
    rows: int,
) -> Plan:
    """The plan of this step, made by the first layer that asks. Recognized by the content of its
    inputs and not by their identity: buffers may be reused between steps."""
    key = (tokens_per_block, window, rows)
    inputs = (block_table, query_starts, context_lens)
    last = _plans.get(key)
    if last is not None and all(map(torch.equal, last[0], inputs)):
        return last[1]
    plan = make_plan(*inputs, tokens_per_block, window, rows)
    _plans[key] = ((block_table.clone(), query_starts.clone(), context_lens.clone()), plan)
    return plan


def _cpu(
    q: torch.Tensor,
    gate: torch.Tensor,
    gate_bias: torch.Tensor,
    kv: torch.Tensor,
    block_table: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    window: int,
    scale: float,
) -> torch.Tensor:
    num_tokens, num_heads, dim = q.shape
    num_kv_heads, tokens_per_block = kv.shape[2], kv.shape[3]
    group_size = num_heads // num_kv_heads
    rows = max(1, ROWS // group_size)
    plan = _plan(block_table, query_starts, context_lens, tokens_per_block, window, rows)
    queries = q.float().mul(scale).view(num_tokens, num_kv_heads, group_size, dim)
    parts = [_attend(queries, kv, group) for group in plan.groups]
    out = torch.cat(parts).index_select(0, plan.order).view(num_tokens, num_heads, dim).to(q.dtype)
    opened = sigmoid((gate.view_as(out) + gate_bias[:, None]).float()).to(q.dtype)
    return out.mul_(opened).view(num_tokens, num_heads * dim)


def _attend(queries: torch.Tensor, kv: torch.Tensor, group: TileGroup) -> torch.Tensor:
    """fp32 queries [n, kv_heads, group_size, D] -> results of the group's tokens in their order,
    [num_used, kv_heads, group_size, D].

    The two products have whole tiles; everything between and behind is done for live rows alone,
    which in generation are one of a tile.
    """
    num_pairs = group.pair_q_tile.shape[0]
    q_tiles, rows = group.tokens.shape
    _, num_kv_heads, group_size, dim = queries.shape
    tall = rows * group_size
    shape = (num_pairs, num_kv_heads, rows, group_size)
    live = (group.live_pair, slice(None), group.live_row)
    picked = queries[group.tokens].transpose(1, 2).reshape(q_tiles, num_kv_heads, tall, dim)
    keys, values = _gather(kv, group)
    values[group.hole_pair, :, group.hole_row] = 0.0
    scores = torch.bmm(
        picked.index_select(0, group.pair_q_tile).view(-1, tall, dim),
        keys.reshape(-1, KV_TILE, dim).transpose(1, 2),
    )
    seen = scores.view(*shape, KV_TILE)[live].masked_fill_(group.hidden, -torch.inf)
    maximum = seen.amax(-1, keepdim=True).clamp_(min=_MASKED_MAX)
    weights = seen.sub_(maximum).exp_()
    total = weights.sum(-1, keepdim=True)
    tiles = scores.zero_()
    tiles.view(*shape, KV_TILE)[live] = weights
    out = torch.bmm(tiles, values.view(-1, KV_TILE, dim)).view(*shape, dim)[live]
    return _combine(maximum, total, out, group)


def _gather(kv: torch.Tensor, group: TileGroup) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values under each pair, fp32 [pairs, kv_heads, KV_TILE, D] each."""
    num_blocks, _, num_kv_heads, tokens_per_block, dim = kv.shape
    flat = kv.view(2 * num_blocks, num_kv_heads, tokens_per_block, dim)
    index = torch.stack((2 * group.blocks, 2 * group.blocks + 1))  # [2, pairs, blocks_per_tile]
    if tokens_per_block > KV_TILE:
        split = flat.view(2 * num_blocks, num_kv_heads, -1, KV_TILE, dim)
        tiles = split[index.squeeze(-1), :, group.part]
    else:
        tiles = flat.index_select(0, index.flatten()).view(
            *index.shape, num_kv_heads, tokens_per_block, dim
        )
        tiles = tiles.transpose(2, 3).reshape(2, -1, num_kv_heads, KV_TILE, dim)
    keys, values = tiles.float().unbind(0)
    return keys, values


def _combine(
    maximum: torch.Tensor, total: torch.Tensor, out: torch.Tensor, group: TileGroup
) -> torch.Tensor:
    """Bring each live row to its query's common maximum and add them in order of position:
    [live, kv_heads, group_size, D] -> [num_used, ..]. Added one run after the other, so that absent
    tiles change nothing, not even the order of a sum."""
    ends = itertools.accumulate(group.run_lengths)
    runs = [slice(start, end) for start, end in itertools.pairwise(ends)]
    common = maximum[: group.num_used].clone()
    for run in runs:
        prefix = common[: run.stop - run.start]
        torch.maximum(prefix, maximum[run], out=prefix)
    for run in (slice(0, group.num_used), *runs):
        factor = maximum[run].sub_(common[: run.stop - run.start]).exp_()
        total[run].mul_(factor)
        out[run].mul_(factor)
    for run in runs:
        total[: run.stop - run.start].add_(total[run])
        out[: run.stop - run.start].add_(out[run])
    return out[: group.num_used].div_(total[: group.num_used])


def _fake(
    q: torch.Tensor,
    gate: torch.Tensor,
    gate_bias: torch.Tensor,
    kv: torch.Tensor,
    block_table: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    window: int,
    scale: float,
) -> torch.Tensor:
    return q.new_empty((q.shape[0], q.shape[1] * q.shape[2]))


OPS = (
    define(
        "hybrid_attention(Tensor q, Tensor gate, Tensor gate_bias, Tensor kv, Tensor block_table, "
        "Tensor query_starts, Tensor context_lens, int window, float scale) -> Tensor",
        _cpu,
        _fake,
    ),
)
