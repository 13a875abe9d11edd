"""The sums of a throughput run; the run itself is driven against the real server in tests/e2e."""

import pytest

from beam_trt.bench.throughput import Load, RequestTimes


def test_load_sums_up_requests() -> None:
    times = [RequestTimes(0.1, 1.1, 11), RequestTimes(0.3, 2.3, 11), RequestTimes(0.2, 0.2, 1)]
    load = Load.of(num_clients=2, seconds=2.5, times=times)
    assert load.num_requests == 3
    assert load.num_tokens == 23
    assert load.tokens_per_s == pytest.approx(9.2)
    assert load.first_token_ms == pytest.approx(200)
    assert load.first_token_p95_ms == pytest.approx(300)
    assert load.per_token_ms == pytest.approx(150)  # median of 100 and 200


def test_single_tokens_have_no_time_between() -> None:
    load = Load.of(num_clients=1, seconds=1.0, times=[RequestTimes(0.2, 0.2, 1)])
    assert load.per_token_ms is None
