"""RMSNorm, alone and as the boundary between two branches of a layer.

    rms_norm(x [n, H], weight [H], eps) -> [n, H]
    norm_boundary(branch [n, H] fp32, residual [n, H], post_weight, next_weight, eps, add_idx,
                  branch_scale) -> (residual [n, H], normed [n, H])

`branch` is the fp32 sum over ranks of a projection's partial sums (o_proj, down_proj or experts);
rounding it to the model dtype happens here, once. `add_idx` is k, the 1-based number of this
residual addition plus one (BEAM.md, step 5); `branch_scale` is routed_scaling_factor behind
experts, else 1. The CUDA kernel fuses the all-reduce before and the quantization behind.
"""
