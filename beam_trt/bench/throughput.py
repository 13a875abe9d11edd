"""A closed loop of streaming clients against a server: each sends its next request when the one
before it has ended.

Times are seconds on the client's clock (perf_counter), so they hold the wire and the server, not
only the engine.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from beam_trt.client.grpc import AsyncGrpcClient
from beam_trt.errors import ServerError
from beam_trt.serving.answer import GenerateRequest


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """One answered request: seconds to its first token, seconds in all, tokens generated."""

    first_token_s: float
    total_s: float
    num_tokens: int

    @property
    def per_token_s(self) -> float | None:
        """Mean seconds between tokens after the first; None for a single token."""
        if self.num_tokens < 2:
            return None
        return (self.total_s - self.first_token_s) / (self.num_tokens - 1)


@dataclass(frozen=True, slots=True)
class Load:
    """One row of a throughput table: `num_clients` at once. Medians, and the 95th percentile of the
    time to first token, over all requests; tokens a second over the whole run."""

    num_clients: int
    num_requests: int
    num_tokens: int
    seconds: float
    first_token_ms: float
    first_token_p95_ms: float
    per_token_ms: float | None

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "tokens_per_s": self.tokens_per_s}

    @classmethod
    def of(cls, num_clients: int, seconds: float, times: Sequence[RequestTimes]) -> "Load":
        """Sum up `times`, at least one."""
        firsts = sorted(t.first_token_s for t in times)
        gaps = [gap for t in times if (gap := t.per_token_s) is not None]
        p95 = firsts[min(len(firsts) - 1, int(0.95 * len(firsts)))]
        return cls(
            num_clients=num_clients,
            num_requests=len(times),
            num_tokens=sum(t.num_tokens for t in times),
            seconds=seconds,
            first_token_ms=statistics.median(firsts) * 1e3,
            first_token_p95_ms=p95 * 1e3,
            per_token_ms=statistics.median(gaps) * 1e3 if gaps else None,
        )


def measure(
    address: str, requests: Sequence[GenerateRequest], num_clients: int, requests_per_client: int
) -> Load:
    """Run the load against the gRPC endpoint `address` ("host:port"). Client c's i-th request is
    `requests[(c + i * num_clients) % len(requests)]`. One request is sent before the clock starts.
    Raises ServerError when any request fails."""
    return asyncio.run(_measure(address, requests, num_clients, requests_per_client))


async def _measure(
    address: str, requests: Sequence[GenerateRequest], num_clients: int, requests_per_client: int
) -> Load:
    times: list[RequestTimes] = []

    async def client_loop(client: AsyncGrpcClient, first: int) -> None:
        for i in range(requests_per_client):
            times.append(await _one(client, requests[(first + i * num_clients) % len(requests)]))

    async with AsyncGrpcClient(address) as client:
        await _one(client, requests[0])
        began = time.perf_counter()
        loops = [asyncio.ensure_future(client_loop(client, i)) for i in range(num_clients)]
        try:
            await asyncio.gather(*loops)
        finally:
            for loop in loops:
                loop.cancel()
        seconds = time.perf_counter() - began
    return Load.of(num_clients, seconds, times)


async def _one(client: AsyncGrpcClient, request: GenerateRequest) -> RequestTimes:
    began = time.perf_counter()
    first = last = None
    num_tokens = 0
    async for piece in client.stream(request):
        last = time.perf_counter()
        if first is None and piece.token_ids:
            first = last
        num_tokens += len(piece.token_ids)
    if first is None or last is None:
        raise ServerError(
            "throughput: an answer held no token; nothing can be timed. Look at the server's log."
        )
    return RequestTimes(first - began, last - began, num_tokens)
