"""What happens to queries, keys and values between their projection and attention.

    position_terms(positions [n] int64, inv_freq [D/2]) -> (cos_sin fp32 [n, D], query_scale [n])
    qk_norm_rope_write(qkvg [n, (2 q + 2 kv) * D], q_norm [D], k_norm [D], cos_sin | None,
                       query_scale | None, kv!, slots [n] int64, num_heads, num_kv_heads, eps)
        -> q [n, q, D]

Per-head RMSNorm of q and k, then either RoPE on both (`cos_sin`, sliding layers) or the query scale
(`query_scale`, full layers without positions), and k and v into the paged KV at `slots`, all in one
op. `position_terms` runs once a step for all layers. Columns of `qkvg` are q, k, v, gate.
"""
