"""Sampling parameters refuse what cannot be sampled; messages survive the wire."""

import math
from typing import Any

import pytest

from beam_trt.errors import RequestError
from beam_trt.runtime import wire
from beam_trt.runtime.request import Request, RequestOutput, SamplingParams, Timings, Usage


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("min_tokens", -1),
        ("min_tokens", 257),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", 1e39),
        ("temperature", 1e-60),
        ("temperature", 10**400),
        ("temperature", -1e-60),
        ("temperature", "warm"),
        ("top_k", 0),
        ("top_k", 2.0),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("seed", -1),
        ("seed", 2**64),
        ("stop_token_ids", (-2,)),
    ],
)
def test_a_bad_value_is_named_with_its_range(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{field: value})
    shown = value[0] if isinstance(value, tuple) else value
    assert str(caught.value).startswith(f"{field}: expected ")
    assert str(caught.value).endswith(f"got {shown!r}.")


@pytest.mark.parametrize(
    "values",
    [
        {"seed": 2**64 - 1},
        {"top_p": 1},
        {"top_p": 1e-30},
        {"temperature": 1},
        {"temperature": 1e-44},
        {"top_k": 10**9},
        {"min_tokens": 256},
    ],
)
def test_the_edges_are_allowed(values: dict[str, Any]) -> None:
    SamplingParams(**values)


def test_a_prompt_is_integers() -> None:
    with pytest.raises(RequestError, match="prompt: token id at index 1: expected an integer"):
        Request("a", (3, 4.0), SamplingParams())  # type: ignore[arg-type]


def test_requests_survive_the_wire() -> None:
    request = Request(
        "a b\n\u00e9",
        tuple(range(1000)),
        SamplingParams(temperature=0.1, top_k=3, seed=2**64 - 1, stop_token_ids=(4, 5)),
    )
    line = wire.encode(wire.request_to_dict(request))
    assert line.count(b"\n") == 1
    assert wire.request_from_dict(wire.decode(line)) == request


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sampling": {"temprature": 1}}, "temprature"),
        ({"sampling": {"top_p": 2}}, "top_p: expected"),
        ({"sampling": None}, "cannot be read"),
        ({"prompt_ids": ["3"]}, "prompt: token id at index 0"),
        ({"prompt_ids": 3}, "cannot be read"),
    ],
)
def test_nonsense_from_the_wire_is_refused(change: dict[str, Any], message: str) -> None:
    values = {"request_id": "a", "prompt_ids": [1], "sampling": {}} | change
    with pytest.raises(RequestError, match=message):
        wire.request_from_dict(values)


@pytest.mark.parametrize("logprobs", [None, (), (-0.1, -2.5)])
def test_outputs_survive_the_wire(logprobs: tuple[float, ...] | None) -> None:
    output = RequestOutput(
        request_id="a",
        token_ids=(1, 2),
        logprobs=logprobs,
        finish_reason="stop",
        stop_token_id=2,
        error=None,
        usage=Usage(3, 2),
        timings=Timings(1, 2, None, 4),
        seed=2**63,
    )
    assert wire.output_from_dict(wire.decode(wire.encode(wire.output_to_dict(output)))) == output
