"""CPU experts: rows sorted into tiles of one expert each, tiles multiplied in batches.

A token's row goes through the same tile shapes whatever its neighbours, and its experts are added
in order of their index, so that its sum does not depend on the batch.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from beam_trt_plugins.row_tiles import ROWS, pad_rows
from beam_trt_plugins.swiglu.op import activate

Quantizer = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(activations [tiles, ROWS, K], expert of each tile [tiles]) -> fp32 of the same shape."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Where each token's row of each of its experts is computed.

    rows: [n, k] int64, row of expert j (ascending index) of token i among all tiles' rows; one
        behind the last for experts of other ranks
    weights: fp32 [n, k] in the same order
    tokens: [num_tiles * ROWS] int64, token in each row (0 in unused rows); None when every tile
        holds all tokens in order
    tiles: number of tiles of each local expert
    """

    rows: torch.Tensor
    weights: torch.Tensor
    tokens: torch.Tensor | None
    tiles: list[int]


def route(
    expert_idx: torch.Tensor, expert_weights: torch.Tensor, first_expert: int, num_experts: int
) -> Routing:
    """Plan the tiles for experts first_expert .. first_expert + num_experts of this rank."""
    num_tokens = expert_idx.shape[0]
    experts, order = expert_idx.long().sort(dim=-1)
    weights = expert_weights.gather(1, order)
    local = experts - first_expert
    is_local = (local >= 0) & (local < num_experts)
    if num_tokens <= ROWS:
        return _route_one_tile(local, is_local, weights, num_experts)
    token, choice = is_local.nonzero(as_tuple=True)
    expert = local[token, choice]
    by_expert = expert.argsort(stable=True)
    counts = torch.bincount(expert, minlength=num_experts)
    tiles = (counts + ROWS - 1) // ROWS
    # A row's place: its expert's first tile, then its rank among the rows of that expert.
    shift = (tiles.cumsum(0) - tiles) * ROWS - (counts.cumsum(0) - counts)
    place = torch.empty_like(expert)
    place[by_expert] = torch.arange(expert.shape[0]) + shift[expert[by_expert]]
    num_rows = int(tiles.sum()) * ROWS
    rows = torch.full_like(experts, num_rows)
    rows[token, choice] = place
    tokens = torch.zeros(num_rows, dtype=torch.int64)
    tokens[place] = token
    return Routing(rows, weights, tokens, tiles.tolist())


def _route_one_tile(
    local: torch.Tensor, is_local: torch.Tensor, weights: torch.Tensor, num_experts: int
) -> Routing:
    """All tokens fit one tile, and each expert gets that tile: nothing to sort. Where most experts
    cannot be hit only those that are get it; else all do, in one batched product."""
    tiles = torch.ones(num_experts, dtype=torch.int64)
    if 2 * local.numel() <= num_experts:
        tiles = torch.bincount(local[is_local], minlength=num_experts).clamp_(max=1)
    place = tiles.cumsum(0).sub_(1)
    rows = place[local.clamp(0, num_experts - 1)] * ROWS + torch.arange(local.shape[0])[:, None]
    rows.masked_fill_(~is_local, int(tiles.sum()) * ROWS)
    return Routing(rows, weights, None, tiles.tolist())


def run(
    x: torch.Tensor,
    routing: Routing,
    gate_up_t: torch.Tensor,
    down_t: torch.Tensor,
    inner_size: int,
    quantize_x: Quantizer,
    quantize_inner: Quantizer,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """x [n, H] through prepared gate_up_t [E, H, 2 I], SwiGLU and down_t [E, I, H], weighted and
    added in expert order: fp32 [n, H]. `inner_size` is I; `dtype`, x's own where None, is what
    gate_up and SwiGLU round to."""
    dtype = dtype or x.dtype
    experts = torch.repeat_interleave(torch.tensor(routing.tiles))
    if routing.tokens is None:
        tiles = pad_rows(x).expand(experts.shape[0], ROWS, x.shape[1])
    else:
        tiles = x.index_select(0, routing.tokens).view(-1, ROWS, x.shape[1])
    gate_up = _multiply(quantize_x(tiles, experts), gate_up_t, routing)[..., : 2 * inner_size]
    inner = activate(gate_up.to(dtype)).to(dtype)
    rows = _multiply(quantize_inner(inner, experts), down_t, routing)
    return _combine(rows.flatten(0, 1), routing)[:, : x.shape[1]]


def _multiply(tiles: torch.Tensor, weight_t: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Each tile [ROWS, K] times its expert's [K, N]: fp32 [tiles, ROWS, N]."""
    if all(count == 1 for count in routing.tiles):
        return torch.bmm(tiles, weight_t)
    out = torch.empty(tiles.shape[0], ROWS, weight_t.shape[2])
    start = 0
    for expert, count in enumerate(routing.tiles):
        if count:
            these = slice(start, start + count)
            torch.bmm(tiles[these], weight_t[expert].expand(count, -1, -1), out=out[these])
            start += count
    return out


def _combine(rows: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Weighted sum over each token's experts, one after the other: a sum over the whole dimension
    would be free to order them by the batch's size."""
    weights = routing.weights
    if not rows.shape[0]:
        return torch.zeros(weights.shape[0], rows.shape[1])
    present = routing.rows < rows.shape[0]
    weights = weights.masked_fill(~present, 0.0)
    picked = rows.index_select(0, routing.rows.masked_fill(~present, 0).flatten())
    picked = picked.view(*weights.shape, rows.shape[1]).mul_(weights.unsqueeze(-1))
    out = picked[:, 0].clone()
    for choice in range(1, weights.shape[1]):
        out.add_(picked[:, choice])
    return out
