"""The one place that says how large beam-tiny is."""

from typing import Any

SHAPE: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 10,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "sliding_window": 64,
    "moe_intermediate_size": 64,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "final_logit_softcapping": 30.0,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": [3, 4, 0],  # <|return|>, <|call|>, <|endoftext|>
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": None,
    },
}
"""BeamConfig values; layer types follow the published schedule (full: 5 and the last, 9).

Every in-dimension is a multiple of 16 at TP 1, 2 and 4: hidden 128 (never split), heads 8*32 = 256
(o_proj: 256, 128, 64), dense intermediate 384 (384, 192, 96), expert intermediate 64 (64, 32, 16).
"""
