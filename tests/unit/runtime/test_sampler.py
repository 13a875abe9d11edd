"""The sampler against transformers' own processors, known generator vectors, and itself in a
crowd."""

import math
from typing import Any

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from beam_trt.runtime.philox import philox4x32, uniform
from beam_trt.runtime.request import SamplingParams
from beam_trt.runtime.sampler import sample
from beam_trt.runtime.session import SamplingRow


def row(
    position: int = 0, seed: int = 0, banned: tuple[int, ...] = (), **params: Any
) -> SamplingRow:
    return SamplingRow(SamplingParams(**params), seed, position, banned)


def random_logits(num_rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 4 * torch.randn(num_rows, vocab_size, generator=generator)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_vectors(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    """Known answers that the authors ship with Random123 (kat_vectors, philox4x32 10)."""
    assert philox4x32(counter, key) == expected


def test_uniform_is_uniform_and_takes_every_bit_of_its_arguments() -> None:
    values = torch.tensor([uniform(3, position) for position in range(20000)], dtype=torch.float64)
    assert values.min() >= 0
    assert values.max() < 1
    counts = torch.histc(values, 20, 0, 1)
    chi_square = ((counts - 1000) ** 2 / 1000).sum().item()
    assert chi_square < 60  # 19 degrees of freedom: beyond 60 once in 4 million
    seen = {uniform(1 << bit, 0) for bit in range(64)} | {uniform(0, 1 << bit) for bit in range(40)}
    assert len(seen) == 104


def test_greedy_is_argmax_and_leaves_the_logits_alone() -> None:
    logits = random_logits(5, 100)
    before = logits.clone()
    tokens = sample(logits, [row(banned=(int(logits[n].argmax()),) * (n % 2)) for n in range(5)])
    assert torch.equal(logits, before)
    for n, token in enumerate(tokens):
        order = logits[n].argsort(descending=True).tolist()
        assert token.token_id == order[n % 2]
        assert token.logprob is None


CASES: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 2.5, "top_k": 1},
    {"temperature": 1.0, "top_k": 7},
    {"temperature": 1.0, "top_k": 1000},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.3, "top_p": 0.3},
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 0.8, "top_k": 12, "top_p": 0.7},
]


@pytest.mark.parametrize("params", CASES)
def test_the_distribution_is_transformers(params: dict[str, Any]) -> None:
    vocab_size, num_draws = 40, 4000
    logits = random_logits(1, vocab_size, seed=5) / 2
    scores = TemperatureLogitsWarper(params["temperature"])(None, logits)
    if "top_k" in params:
        scores = TopKLogitsWarper(params["top_k"])(None, scores)
    if "top_p" in params:
        scores = TopPLogitsWarper(params["top_p"])(None, scores)
    expected = scores.softmax(-1)[0]
    rows = [row(position, seed=11, **params) for position in range(num_draws)]
    tokens = sample(logits.expand(num_draws, -1), rows)
    counts = torch.bincount(
        torch.tensor([token.token_id for token in tokens]), minlength=vocab_size
    )
    assert not counts[expected == 0].any(), "a token that transformers would cut was drawn"
    spread = (expected * (1 - expected) / num_draws).sqrt()
    assert ((counts / num_draws - expected).abs() <= 5 * spread + 1e-3).all()


def test_a_row_does_not_depend_on_the_others() -> None:
    logits = random_logits(16, 1000, seed=2)
    rows = [
        row(position=n, seed=n * 7919, logprobs=True, **CASES[n % len(CASES)]) for n in range(15)
    ]
    rows.append(row(logprobs=True))
    together = sample(logits, rows)
    alone = [sample(logits[n : n + 1], [rows[n]])[0] for n in range(16)]
    backwards = sample(logits.flip(0), rows[::-1])[::-1]
    assert together == alone == backwards


def test_seed_and_position_decide() -> None:
    logits = random_logits(1, 1000).expand(50, -1)

    def draw(seed: int) -> list[int | None]:
        rows = [row(position, seed, temperature=1.5) for position in range(50)]
        return [token.token_id for token in sample(logits, rows)]

    assert draw(4) == draw(4)
    assert draw(4) != draw(5)
    assert len(set(draw(4))) > 10


def test_logprobs_are_of_the_unmodified_logits() -> None:
    logits = random_logits(3, 500)
    rows = [row(logprobs=True, temperature=0.4, top_k=3, seed=n, banned=(1,)) for n in range(3)]
    reference = logits.double().log_softmax(-1)
    for n, token in enumerate(sample(logits, rows)):
        assert token.token_id is not None
        assert token.logprob is not None
        assert math.isclose(token.logprob, reference[n, token.token_id].item(), abs_tol=1e-12)


@pytest.mark.parametrize("temperature", [1e-45, 1e-30, 1e-3, 1e30, 3e38])
def test_no_temperature_overflows(temperature: float) -> None:
    logits = random_logits(1, 64)
    tokens = sample(logits.expand(8, -1), [row(n, temperature=temperature) for n in range(8)])
    found = {token.token_id for token in tokens}
    if temperature <= 1e-3:
        assert found == {int(logits.argmax())}
    else:
        assert len(found) > 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_give_no_token(bad: float) -> None:
    logits = random_logits(3, 64)
    logits[1, 20] = bad
    tokens = sample(logits, [row(), row(temperature=1.0, logprobs=True), row(temperature=1.0)])
    assert tokens[1].token_id is None
    assert tokens[0].token_id is not None
    assert tokens[2].token_id is not None


def test_minus_infinity_is_a_token_never_drawn() -> None:
    logits = torch.full((64, 10), -math.inf)
    logits[:, 3] = 0.0
    logits[:, 8] = 0.0
    tokens = sample(logits, [row(n, temperature=1.0) for n in range(64)])
    assert {token.token_id for token in tokens} == {3, 8}
