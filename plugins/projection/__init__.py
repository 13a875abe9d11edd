"""Linear layers of the decoder: qkv+gate packed, o_proj, dense gate_up and down.

    linear      (x [n, K], weight [N, K], out_dtype) -> [n, N]
    linear_fp8  (x, weight E4M3 [N, K], weight_scale [N], out_dtype) -> [n, N]
    linear_nvfp4(x, weight U8 [N, K/2], weight_scale E4M3 [N, K/16], weight_scale_2 [1],
                 input_scale [1], out_dtype) -> [n, N]

Sums are fp32. `out_dtype` is the model dtype, or fp32 where the result is one rank's partial sum
that an all-reduce completes. FP8 quantizes x per token (scale = amax / 448); NVFP4 quantizes x per
16 columns with an E4M3 block scale under `input_scale` (see `activations`). A rank that holds some
columns of K scales by what it holds: for FP8, tp_size changes the last bits of o_proj and down.
"""
