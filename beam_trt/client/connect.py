"""Picks the client for a URL."""

from beam_trt.client.grpc import GrpcClient
from beam_trt.client.http import HttpClient
from beam_trt.client.stream import DEFAULT_IDLE_TIMEOUT_S
from beam_trt.errors import ServerError

Client = GrpcClient | HttpClient


def connect(url: str, idle_timeout_s: float = DEFAULT_IDLE_TIMEOUT_S) -> Client:
    """A client of "grpc://host:port" or "http://host:port". Nothing is sent yet. Raises ServerError
    for any other form."""
    if url.startswith("grpc://"):
        return GrpcClient(url.removeprefix("grpc://").rstrip("/"), idle_timeout_s)
    if url.startswith(("http://", "https://")):
        return HttpClient(url, idle_timeout_s)
    raise ServerError(
        f"{url}: expected grpc://HOST:PORT or http://HOST:PORT, for example grpc://127.0.0.1:8001."
    )
