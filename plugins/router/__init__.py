"""Grouped top-k routing, all in fp32.

    router(x [n, H], weight fp32 [E, H], bias fp32 [E], num_groups, topk_groups, top_k)
        -> (expert_idx int32 [n, top_k], expert_weights fp32 [n, top_k])

Scores are sigmoid(x @ weight.T); `bias` takes part in choosing only. A group counts by the sum of
its two best; the weights of the chosen experts are normalized to sum to one. Experts are listed
best first. routed_scaling_factor is not applied here: it multiplies the experts' sum.
"""
