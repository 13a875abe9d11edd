"""The same request alone, in a crowd, in any chunks, on any blocks: the same bits."""

import random

import pytest
import torch
from checkpoints import random_model, small_config
from reference.paged import PagedModel
from transformers import BeamForCausalLM

from beam_trt.config.quant import Precision

NUM_REQUESTS = 16
LENGTHS = [1, 2, 31, 63, 64, 65, 66, 100, 127, 128, 129, 150, 90, 17, 5, 140]


def prompt(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(256) for _ in range(LENGTHS[seed % len(LENGTHS)] + 4)]


@pytest.fixture(scope="module")
def model() -> BeamForCausalLM:
    config = small_config(
        num_hidden_layers=5, layer_types=["sliding_attention"] * 4 + ["full_attention"]
    )
    return random_model(config, dtype=torch.bfloat16)


def alone(paged: PagedModel, name: str, ids: list[int]) -> torch.Tensor:
    return paged.step([(name, ids)])[name]


PRECISIONS = [Precision.FP32, Precision.BF16, Precision.FP8, Precision.NVFP4]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_alone_and_in_a_crowd(model: BeamForCausalLM, precision: Precision) -> None:
    """16 requests that start and advance at different times in steps of mixed work."""
    crowd = PagedModel(model, precision, num_blocks=80, seed=1)
    prompts = {f"r{seed}": prompt(seed) for seed in range(NUM_REQUESTS)}
    found: dict[str, list[torch.Tensor]] = {name: [] for name in prompts}
    done = dict.fromkeys(prompts, 0)
    rng = random.Random(0)
    while any(done[name] < len(ids) for name, ids in prompts.items()):
        left = [name for name, ids in prompts.items() if done[name] < len(ids)]
        work = []
        for name in rng.sample(left, rng.randint(1, len(left))):
            size = rng.choice([1, 1, 7, 40, 150])
            work.append((name, prompts[name][done[name] : done[name] + size]))
            done[name] += len(work[-1][1])
        for name, logits in crowd.step(work).items():
            found[name].append(logits)
    one = PagedModel(model, precision, num_blocks=80, tokens_per_block=32, seed=2)
    for name, ids in prompts.items():
        assert torch.equal(torch.cat(found[name]), alone(one, name, ids)), name


@pytest.mark.parametrize("tp_size", [1, 4])
@pytest.mark.parametrize("size", [1, 7, 16, 64, 100])
def test_chunks(model: BeamForCausalLM, size: int, tp_size: int) -> None:
    ids = prompt(11)
    paged = PagedModel(model, Precision.BF16, tp_size=tp_size)
    whole = alone(paged, "whole", ids)
    chunks = [alone(paged, "cut", ids[i : i + size]) for i in range(0, len(ids), size)]
    assert torch.equal(torch.cat(chunks), whole)


def test_logit_rows_choose_among_tokens(model: BeamForCausalLM) -> None:
    paged = PagedModel(model, Precision.BF16)
    batch = paged.prepare([("a", prompt(3)), ("b", prompt(4))])
    everything = paged.ranks[0].forward(batch, paged.pools[0])
    rows = torch.tensor([40, 3])
    batch.logit_rows.resize_(2).copy_(rows)
    assert torch.equal(paged.ranks[0].forward(batch, paged.pools[0]), everything[rows])
