"""beam_trt_plugins: the kernels of a Beam step as torch ops, `torch.ops.beam_trt.*`.

One folder an op: `reference.py` is its truth in plain fp32 torch, `op.py` its torch.library
registration with a fake and a CPU implementation. Importing this package registers every op.
The CPU implementations are batch invariant to the bit: see `row_tiles`.

Knows nothing about engines or requests, and depends on torch alone.
"""

from beam_trt_plugins.embedding import op as _embedding
from beam_trt_plugins.hybrid_attention import op as _hybrid_attention
from beam_trt_plugins.logits import op as _logits
from beam_trt_plugins.moe import op as _moe
from beam_trt_plugins.projection import op as _projection
from beam_trt_plugins.qk_norm_rope import op as _qk_norm_rope
from beam_trt_plugins.residual_norm import op as _residual_norm
from beam_trt_plugins.router import op as _router
from beam_trt_plugins.swiglu import op as _swiglu

OPS = (
    *_embedding.OPS,
    *_residual_norm.OPS,
    *_projection.OPS,
    *_qk_norm_rope.OPS,
    *_hybrid_attention.OPS,
    *_router.OPS,
    *_moe.OPS,
    *_swiglu.OPS,
    *_logits.OPS,
)
"""Names of every op in the `beam_trt` namespace, in the order a step meets them."""
