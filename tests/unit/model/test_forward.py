"""The whole forward against transformers' BeamForCausalLM, through paged KV."""

import random
from typing import Any

import pytest
import torch
from checkpoints import random_model, small_config
from reference.paged import PagedModel
from transformers import BeamConfig, BeamForCausalLM

from beam_trt.config.quant import Precision

PROMPTS = [1, 63, 64, 65, 200, 700]
NUM_DECODE_STEPS = 100
TOLERANCE = 1e-4
"""On fp32 logits that a softcap keeps within +-30."""


def tokens(num_tokens: int, vocab_size: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (num_tokens,), generator=generator).tolist()  # type: ignore[no-any-return]


def hf_logits(model: BeamForCausalLM, ids: list[int]) -> torch.Tensor:
    """fp32 logits [tokens, vocab] of the whole sequence at once."""
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


@pytest.fixture(scope="module")
def model() -> BeamForCausalLM:
    return random_model(small_config())


def test_prefill_and_100_decode_steps(model: BeamForCausalLM) -> None:
    """Six prompts prefill apart and then generate together; blocks behind the window are freed and
    poisoned on the way."""
    paged = PagedModel(model, tokens_per_block=16, num_blocks=150)
    sequences = {str(n): tokens(n + NUM_DECODE_STEPS, 256, seed=n) for n in PROMPTS}
    found = {
        name: [paged.step([(name, ids[: int(name)])])[name]] for name, ids in sequences.items()
    }
    for step in range(NUM_DECODE_STEPS):
        work = [(name, [ids[int(name) + step]]) for name, ids in sequences.items()]
        for name, logits in paged.step(work).items():
            found[name].append(logits)
    for name, ids in sequences.items():
        expected = hf_logits(model, ids)
        assert (torch.cat(found[name]) - expected).abs().max() < TOLERANCE, name
    assert paged.num_poisoned > 50


@pytest.mark.parametrize("tp_size", [2, 4, 8])
@pytest.mark.parametrize("ep_size", [1, 2])
def test_ranks_agree_with_one(model: BeamForCausalLM, tp_size: int, ep_size: int) -> None:
    """TP up to twice the KV heads, experts split by intermediate or by expert."""
    ids = tokens(150, 256)
    expected = hf_logits(model, ids)
    paged = PagedModel(model, tp_size=tp_size, ep_size=ep_size)
    parts = [paged.step([("a", ids[:100])])["a"]]
    parts += [paged.step([("a", [token])])["a"] for token in ids[100:120]]
    parts += [paged.step([("a", ids[120:])])["a"]]
    assert (torch.cat(parts) - expected).abs().max() < TOLERANCE


def random_config(seed: int) -> BeamConfig:
    """A small Beam of any shape the published code accepts."""
    rng = random.Random(seed)
    layers = rng.randint(1, 6)
    kv_heads = rng.choice([1, 2, 3])
    groups = rng.choice([1, 2, 4])
    per_group = rng.randint(2, 5)
    open_groups = rng.randint(1, groups)
    return small_config(
        vocab_size=rng.choice([50, 97, 256]),
        hidden_size=rng.choice([24, 40, 56, 64]),
        intermediate_size=rng.choice([20, 33, 72]),
        num_hidden_layers=layers,
        layer_types=rng.choices(["sliding_attention", "full_attention"], k=layers),
        mlp_layer_types=rng.choices(["dense", "sparse"], k=layers),
        num_attention_heads=kv_heads * rng.choice([1, 2, 3, 5]),
        num_key_value_heads=kv_heads,
        head_dim=rng.choice([2, 6, 10, 16, 24]),
        sliding_window=rng.choice([2, 3, 17, 64, 65, 400]),
        moe_intermediate_size=rng.choice([10, 24, 37]),
        num_experts=groups * per_group,
        n_group=groups,
        topk_group=open_groups,
        num_experts_per_tok=rng.randint(1, min(6, open_groups * per_group)),
        routed_scaling_factor=rng.choice([1.0, 2.5]),
        final_logit_softcapping=rng.choice([None, 5.0, 30.0]),
        rms_norm_eps=rng.choice([1e-6, 1e-5]),
        eos_token_id=None,
        rope_parameters={
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": rng.choice([100.0, 10000.0, 1e6]),
            },
            "full_attention": None,
        },
    )


@pytest.mark.parametrize("seed", range(24))
def test_random_configs(seed: int) -> None:
    config = random_config(seed)
    model = random_model(config, seed)
    length = random.Random(seed).choice([1, 40, 64, 130, 210])
    ids = tokens(length + 5, config.vocab_size, seed)
    paged = PagedModel(model, tokens_per_block=random.Random(seed).choice([16, 64, 128]), seed=seed)
    parts = [paged.step([("a", ids[:length])])["a"]]
    parts += [paged.step([("a", [token])])["a"] for token in ids[length:]]
    error = (torch.cat(parts) - hf_logits(model, ids)).abs().max()
    assert error < TOLERANCE, config


@pytest.mark.parametrize("changes", [{}, {"sliding_window": 2}, {"num_key_value_heads": 8}])
def test_bf16_is_at_most_twice_as_wrong_as_transformers(changes: dict[str, Any]) -> None:
    """Style rule 12 for the whole model: the truth is the bf16 weights run in fp32."""
    half = random_model(small_config(**changes), dtype=torch.bfloat16)
    exact = random_model(small_config(**changes))
    exact.load_state_dict({name: t.float() for name, t in half.state_dict().items()})
    ids = tokens(180, 256, seed=1)
    truth = hf_logits(exact, ids)
    floor = (hf_logits(half, ids) - truth).abs()
    for tp_size in (1, 4):
        paged = PagedModel(half, Precision.BF16, tp_size=tp_size)
        error = (paged.step([("a", ids)])["a"] - truth).abs()
        assert error.max() <= 2 * floor.max(), f"{error.max()=} {floor.max()=} {tp_size=}"
        assert error.mean() <= 1.2 * floor.mean(), f"{error.mean()=} {floor.mean()=} {tp_size=}"


def test_beam_tiny_on_real_text(beam_tiny: Any) -> None:
    """The bundled trained model: same logits as transformers in fp32."""
    model = BeamForCausalLM.from_pretrained(
        beam_tiny,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
    ).eval()
    ids = tokens(300, model.config.vocab_size)
    paged = PagedModel(model)
    parts = [paged.step([("a", part)])["a"] for part in (ids[:111], ids[111:112], ids[112:])]
    assert (torch.cat(parts) - hf_logits(model, ids)).abs().max() < TOLERANCE
