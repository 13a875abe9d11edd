"""Greedy decoding with the training model, recomputing the whole row at every step: no cache to get
wrong, and fast enough on a GPU for a thousand dialogues."""

import torch

from .model import Batch, TrainableBeam, masked_attention, masks


@torch.no_grad()  # type: ignore[untyped-decorator]
def greedy(
    model: TrainableBeam,
    prompts: list[list[int]],
    stops: set[int],
    max_new: int,
    rows: int = 256,
) -> list[list[int]]:
    """The new tokens after each prompt, its stop token included, in the prompts' order."""
    out: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    for begin in range(0, len(order), rows):
        chosen = order[begin : begin + rows]
        for i, new in zip(
            chosen, _batch(model, [prompts[i] for i in chosen], stops, max_new), strict=True
        ):
            out[i] = new
    return out


def _batch(
    model: TrainableBeam, prompts: list[list[int]], stops: set[int], max_new: int
) -> list[list[int]]:
    device = model.lm_head.weight.device
    length = max(map(len, prompts)) + max_new
    tokens = torch.zeros(len(prompts), length, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt)
    tokens = tokens.to(device)
    ends = torch.tensor([len(p) for p in prompts], device=device)
    begins, done = ends.clone(), torch.zeros(len(prompts), dtype=torch.bool, device=device)
    stop_ids = torch.tensor(sorted(stops), device=device)
    each = torch.arange(len(prompts), device=device)
    for _ in range(max_new):
        used = int(ends.max())
        part = tokens[:, :used]
        zeros = torch.zeros_like(part)
        positions = torch.arange(used, device=device).expand_as(part)
        # Right padding is never attended to: every query sees only earlier tokens.
        batch = Batch(part, zeros, positions, torch.ones_like(part, dtype=torch.bool))
        full, sliding = masks(batch, model.window)
        hidden, _ = model(batch, masked_attention(full[:1]), masked_attention(sliding[:1]))
        best = model.logits(hidden[each, ends - 1]).argmax(-1)
        tokens[each[~done], ends[~done]] = best[~done]
        ends = ends + (~done).long()
        done |= torch.isin(best, stop_ids)
        if bool(done.all()):
            break
    return [tokens[row, int(begins[row]) : int(ends[row])].tolist() for row in range(len(prompts))]
