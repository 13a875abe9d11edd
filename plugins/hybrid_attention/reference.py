"""The truth of `hybrid_attention`: one query and one head at a time, in fp32."""

import torch


def hybrid_attention(
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
    """Shapes as in the package's docstring; reads only positions that a query sees."""
    num_heads, dim = q.shape[1:]
    group = num_heads // kv.shape[2]
    tokens_per_block = kv.shape[3]
    out = torch.empty(q.shape[0], num_heads, dim)
    starts = query_starts.tolist()
    for request, context_len in enumerate(context_lens.tolist()):
        start, end = starts[request], starts[request + 1]
        for token in range(start, end):
            position = context_len - (end - token)
            first = max(0, position - window + 1) if window else 0
            seen = range(first, position + 1)
            blocks = [int(block_table[request, p // tokens_per_block]) for p in seen]
            offsets = [p % tokens_per_block for p in seen]
            memory = kv[blocks, :, :, offsets].float()  # [seen, 2, kv_heads, D]
            for head in range(num_heads):
                keys, values = memory[:, 0, head // group], memory[:, 1, head // group]
                weights = torch.softmax(keys @ q[token, head].float() * scale, dim=0)
                out[token, head] = weights @ values
    opened = torch.sigmoid(gate.float().view_as(out) + gate_bias.float()[:, None])
    return (out * opened).flatten(1)
