"""The truth of `router`, one token at a time in plain Python over fp32 scores."""

import torch


def router(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    num_groups: int,
    topk_groups: int,
    top_k: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Chosen experts int32 [n, top_k], best first, and their normalized weights fp32."""
    scores = torch.sigmoid(x.float() @ weight.T)
    choice = scores + bias
    per_group = weight.shape[0] // num_groups
    chosen = []
    for row in choice.tolist():
        groups = [row[g * per_group : (g + 1) * per_group] for g in range(num_groups)]
        strength = [sum(sorted(group, reverse=True)[:2]) for group in groups]
        open_groups = sorted(range(num_groups), key=lambda g: -strength[g])[:topk_groups]
        open_experts = [g * per_group + i for g in open_groups for i in range(per_group)]
        chosen.append(sorted(open_experts, key=lambda e: -row[e])[:top_k])
    expert_idx = torch.tensor(chosen, dtype=torch.int32)
    weights = scores.gather(1, expert_idx.long())
    return expert_idx, weights / (weights.sum(-1, keepdim=True) + 1e-20)
