"""Routed experts of one rank, from normed activations to the weighted sum.

    moe      (x [n, H], gate_up [E, 2 I, H], down [E, H, I], expert_idx int32 [n, k],
              expert_weights fp32 [n, k], first_expert) -> fp32 [n, H]
    moe_fp8  (.. gate_up, gate_up_scale [E, 2 I], down, down_scale [E, H] ..)
    moe_nvfp4(.. gate_up, gate_up_scale, gate_up_scale_2 [E], gate_up_input_scale [E], and the same
              for down ..)

`expert_idx` counts experts of the whole model; this rank holds first_expert.. and adds exact zeros
for others, so that ranks split experts, each expert's intermediate, or both. The result is this
rank's partial sum: fp32, weighted, not yet times routed_scaling_factor. Experts are added in order
of their index. Eager transformers rounds after each expert; here the sum stays fp32 until all
ranks are added, one rounding instead of top_k, which no split over ranks could reproduce.
"""
