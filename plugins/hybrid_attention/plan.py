"""Which query tiles meet which KV tiles in a step: integers only, the same for every layer of a
lifetime, so that it is made once a step.

Tiles are aligned to absolute positions: queries in tiles of `rows` positions, keys in tiles of
KV_TILE. A query's place in its tile and the tiles it meets therefore do not depend on how its
context was chunked or on what else is in the batch. A KV tile that a query of the tile does not see
at all adds exact zeros to that query.
"""

from dataclasses import dataclass

import torch

KV_TILE = 64
"""Positions of one KV tile."""

_MAX_PAIRS = 512
"""(query tile, KV tile) pairs computed at once; bounds memory for long contexts."""


@dataclass(frozen=True, slots=True)
class TileGroup:
    """Query tiles computed together, those that meet most KV tiles first, with their pairs.

    Pairs are ordered by "how many-th KV tile of its query tile": first each query tile's first,
    then the second of those that have one, and so on; each such run is a prefix of the query tiles.

    tokens: [q_tiles, rows] int64, token of each row (0 where the row is unused)
    pair_q_tile: [pairs] int64
    live_pair, live_row: [live] int64, rows of pairs that hold a query, in the pairs' order
    run_lengths: live rows in each run
    blocks: [pairs, blocks_per_tile] int64
    part: [pairs] int64, which KV_TILE of the block, where blocks are larger than a tile
    hidden: [live, 1, 1, KV_TILE] bool, what the mask removes
    hole_pair, hole_row: [holes] int64, KV rows that no query of the tile sees and whose memory may
        hold anything
    num_used: tokens of the group, the live rows of the first run
    """

    tokens: torch.Tensor
    pair_q_tile: torch.Tensor
    run_lengths: list[int]
    blocks: torch.Tensor
    part: torch.Tensor
    hidden: torch.Tensor
    hole_pair: torch.Tensor
    hole_row: torch.Tensor
    live_pair: torch.Tensor
    live_row: torch.Tensor
    num_used: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All tile groups of a step. `order`: [num_tokens] int64, where each token's result is among
    the groups' results, concatenated."""

    groups: tuple[TileGroup, ...]
    order: torch.Tensor


@dataclass(frozen=True, slots=True)
class _QueryTiles:
    request: torch.Tensor
    positions: torch.Tensor  # [q_tiles, rows]
    is_used: torch.Tensor  # [q_tiles, rows] bool
    tokens: torch.Tensor  # [q_tiles, rows]
    first_kv_tile: torch.Tensor
    num_kv_tiles: torch.Tensor


def make_plan(
    block_table: torch.Tensor,
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    tokens_per_block: int,
    window: int,
    rows: int,
) -> Plan:
    """Plan a step of one lifetime; `rows` is the number of positions in a query tile."""
    assert KV_TILE % tokens_per_block == 0 or tokens_per_block % KV_TILE == 0, tokens_per_block
    tiles = _query_tiles(query_starts.long(), context_lens.long(), window, rows)
    by_work = tiles.num_kv_tiles.argsort(descending=True, stable=True)
    work = tiles.num_kv_tiles[by_work]
    group_of = (work.cumsum(0) - work) // _MAX_PAIRS
    sizes = torch.bincount(group_of).tolist() if work.numel() else []
    groups = []
    start = 0
    for size in sizes:
        if size:
            chosen = by_work[start : start + size]
            groups.append(_group(tiles, chosen, block_table, tokens_per_block, window))
            start += size
    computed = [
        g.tokens[g.live_pair[: g.num_used], g.live_row[: g.num_used]] for g in groups
    ]  # the first run's pairs are the query tiles themselves
    order = torch.cat(computed).argsort() if computed else torch.zeros(0, dtype=torch.int64)
    return Plan(tuple(groups), order)


def _query_tiles(
    query_starts: torch.Tensor, context_lens: torch.Tensor, window: int, rows: int
) -> _QueryTiles:
    query_lens = query_starts[1:] - query_starts[:-1]
    first_position = context_lens - query_lens
    first_tile = first_position // rows
    num_tiles = (context_lens + rows - 1) // rows - first_tile
    num_tiles.masked_fill_(query_lens == 0, 0)
    request = torch.repeat_interleave(num_tiles)
    within = torch.arange(request.shape[0]) - (num_tiles.cumsum(0) - num_tiles)[request]
    start = (first_tile[request] + within) * rows
    positions = start[:, None] + torch.arange(rows)
    first, end = first_position[request], context_lens[request]
    is_used = (positions >= first[:, None]) & (positions < end[:, None])
    token = query_starts[:-1][request, None] + positions - first[:, None]
    oldest_query, newest_query = torch.maximum(start, first), torch.minimum(start + rows, end) - 1
    oldest_key = (oldest_query - window + 1).clamp_(min=0) if window else torch.zeros_like(start)
    first_kv_tile = oldest_key // KV_TILE
    return _QueryTiles(
        request=request,
        positions=positions,
        is_used=is_used,
        tokens=token.masked_fill_(~is_used, 0),
        first_kv_tile=first_kv_tile,
        num_kv_tiles=newest_query // KV_TILE - first_kv_tile + 1,
    )


def _group(
    tiles: _QueryTiles,
    chosen: torch.Tensor,
    block_table: torch.Tensor,
    tokens_per_block: int,
    window: int,
) -> TileGroup:
    work = tiles.num_kv_tiles[chosen]
    nth = torch.arange(int(work[0]))
    runs = nth[:, None] < work
    pair_nth, pair_q_tile = runs.nonzero(as_tuple=True)
    source = chosen[pair_q_tile]
    kv_tile = tiles.first_kv_tile[source] + pair_nth
    key = kv_tile[:, None] * KV_TILE + torch.arange(KV_TILE)  # [pairs, KV_TILE] positions
    query = tiles.positions[source, :, None]
    visible = (key[:, None] <= query) & tiles.is_used[source, :, None]
    if window:
        visible &= key[:, None] > query - window
    seen = visible.any(1)
    blocks, part = _blocks(block_table, tiles.request[source], kv_tile, tokens_per_block)
    absent = (blocks < 0).repeat_interleave(KV_TILE // blocks.shape[1], dim=1)
    assert not (absent & seen).any(), "a query of this step sees a block that the table lacks"
    hole_pair, hole_row = (~seen).nonzero(as_tuple=True)
    is_live = tiles.is_used[source]
    live_pair, live_row = is_live.nonzero(as_tuple=True)
    live_per_run = torch.bincount(pair_nth, is_live.sum(1)).long().tolist()
    return TileGroup(
        tokens=tiles.tokens[chosen],
        pair_q_tile=pair_q_tile,
        run_lengths=live_per_run,
        blocks=blocks.clamp_(min=0),
        part=part,
        hidden=~visible[live_pair, live_row][:, None, None],
        hole_pair=hole_pair,
        hole_row=hole_row,
        live_pair=live_pair,
        live_row=live_row,
        num_used=live_per_run[0],
    )


def _blocks(
    block_table: torch.Tensor, request: torch.Tensor, kv_tile: torch.Tensor, tokens_per_block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks under each pair's KV tile [pairs, blocks_per_tile], and the part of the block."""
    per_tile = max(1, KV_TILE // tokens_per_block)
    per_block = max(1, tokens_per_block // KV_TILE)
    column = (kv_tile * per_tile // per_block)[:, None] + torch.arange(per_tile)
    inside = column < block_table.shape[1]
    column.clamp_(max=block_table.shape[1] - 1)
    blocks = block_table[request[:, None], column].long().masked_fill_(~inside, -1)
    return blocks, kv_tile % per_block
