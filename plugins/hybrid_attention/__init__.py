"""Paged attention over a ragged batch, windowed or full, with Beam's output gate.

    hybrid_attention(q [n, q, D], gate [n, q * D], gate_bias [q], kv, block_table int32 [r, blocks],
                     query_starts int32 [r + 1], context_lens int32 [r], window, scale)
        -> [n, q * D]

kv is one layer's [num_blocks, 2, kv_heads, tokens_per_block, D]; it already holds the step's own
tokens. Chunked context and generation requests mix freely: request r's tokens are its last ones,
ending at position context_lens[r] - 1. A query sees itself and everything before it, or with
window > 0 itself and the window - 1 tokens before it (0: full). Query head h reads KV head
h // (q / kv_heads). Blocks that no query of the step sees may be -1 in the table.

The epilogue is out * sigmoid(gate + gate_bias) with the published roundings: gate, its sum with the
bias, its sigmoid, the attention output and the product each round to q's dtype.
"""
