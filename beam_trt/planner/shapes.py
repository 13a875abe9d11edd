"""Published model shapes that `plan --shape` knows without a checkpoint."""

from beam_trt.config.model import DENSE, FULL, SLIDING, SPARSE, ModelConfig
from beam_trt.errors import ConfigError


def beam_501b() -> ModelConfig:
    """Beam-1.0-501B-A23B: 52 layers, full attention every sixth and last, three dense MLPs."""
    num_layers = 52
    return ModelConfig(
        vocab_size=151936,
        hidden_size=5120,
        intermediate_size=20480,
        num_hidden_layers=num_layers,
        num_attention_heads=48,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=1_048_576,
        rms_norm_eps=1e-6,
        sliding_window=512,
        rope_theta=10000.0,
        layer_types=tuple(
            FULL if layer % 6 == 5 or layer == num_layers - 1 else SLIDING
            for layer in range(num_layers)
        ),
        mlp_layer_types=(DENSE,) * 3 + (SPARSE,) * (num_layers - 3),
        moe_intermediate_size=2560,
        num_experts=256,
        num_experts_per_tok=8,
        n_group=8,
        topk_group=4,
        routed_scaling_factor=2.5,
        final_logit_softcapping=30.0,
    )


SHAPES = {"beam-501b": beam_501b}


def named_shape(name: str) -> ModelConfig:
    """The shape called `name`; ConfigError listing the known ones otherwise."""
    if name not in SHAPES:
        raise ConfigError(f"shape: expected one of {', '.join(SHAPES)}, found {name!r}.")
    return SHAPES[name]()
