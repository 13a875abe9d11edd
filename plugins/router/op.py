"""Registration of `router`."""

import torch
from beam_trt_plugins.projection.op import plain_weight
from beam_trt_plugins.registry import define
from beam_trt_plugins.row_tiles import matmul, sigmoid


def _cpu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    num_groups: int,
    topk_groups: int,
    top_k: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    num_tokens, num_experts = x.shape[0], weight.shape[0]
    scores = sigmoid(matmul(x, plain_weight(weight), num_experts))
    choice = scores + bias
    if topk_groups < num_groups:
        grouped = choice.view(num_tokens, num_groups, num_experts // num_groups)
        strength = grouped.topk(2, dim=-1).values.sum(-1)
        closed = torch.ones(num_tokens, num_groups, 1, dtype=torch.bool)
        closed.scatter_(1, strength.topk(topk_groups, dim=-1).indices.unsqueeze(-1), False)
        grouped.masked_fill_(closed, -torch.inf)
    expert_idx = choice.topk(top_k, dim=-1).indices
    weights = scores.gather(1, expert_idx)
    return expert_idx.int(), weights.div_(weights.sum(-1, keepdim=True).add_(1e-20))


def _fake(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    num_groups: int,
    topk_groups: int,
    top_k: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (x.shape[0], top_k)
    return x.new_empty(shape, dtype=torch.int32), x.new_empty(shape, dtype=torch.float32)


OPS = (
    define(
        "router(Tensor x, Tensor weight, Tensor bias, int num_groups, int topk_groups, int top_k)"
        " -> (Tensor, Tensor)",
        _cpu,
        _fake,
    ),
)
