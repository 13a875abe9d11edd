"""The clients against small servers that misbehave in every way a stream can end, and their wire
format against tritonclient's."""

import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from beam_trt.client import grpc as grpc_module
from beam_trt.client.connect import connect
from beam_trt.client.grpc import GrpcClient
from beam_trt.client.http import HttpClient
from beam_trt.client.stream import StreamError
from beam_trt.errors import RequestError, ServerError
from beam_trt.runtime.request import SamplingParams
from beam_trt.serving.answer import Answer, GenerateRequest

REQUEST = GenerateRequest(text="hi", sampling=SamplingParams(max_tokens=3))
FIRST = {"text_output": "one ", "output_ids": 5}
LAST = {"text_output": "two", "output_ids": [6, 7], "finish_reason": "length"}


class Handler(http.server.BaseHTTPRequestHandler):
    events: tuple[Any, ...] = ()
    status = 200
    received: dict[str, Any] = {}  # noqa: RUF012
    headers_seen: Any = None
    hung_up = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        kind = type(self)
        kind.received = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind.headers_seen = self.headers
        self.send_response(kind.status)
        self.end_headers()
        for event in kind.events:
            if event == "silence":
                time.sleep(3)
            elif event == "until hung up":
                try:
                    while True:
                        self.wfile.write(b"data: " + json.dumps(FIRST).encode() + b"\n\n")
                        time.sleep(0.01)
                except OSError:
                    kind.hung_up.set()
                    return
            else:
                self.wfile.write(b": comment\n\ndata: " + json.dumps(event).encode() + b"\n\n")
                self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def server_saying(*events: Any, status: int = 200) -> Iterator[tuple[str, type[Handler]]]:
    handler = type("Saying", (Handler,), {"events": events, "status": status})
    handler.hung_up = threading.Event()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_events_become_pieces() -> None:
    with server_saying(FIRST, LAST) as (url, handler):
        client = HttpClient(url)
        assert client.is_ready()
        answer = Answer.join(client.stream(REQUEST))
    assert (answer.text, answer.token_ids) == ("one two", (5, 6, 7))
    assert answer.ending is not None
    assert answer.ending.finish_reason == "length"
    assert handler.received["text_input"] == "hi"
    assert handler.received["sampling_param_max_tokens"] == 3
    # A form, which is what many clients send by default, crashes Triton when it is large.
    assert handler.headers_seen["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ((FIRST,), r"the server went away: it ended .* after 1 tokens; the text so far is kept"),
        ((FIRST, {"error": "a rank died."}), r"a rank died\. This happened after 1 tokens"),
        ((FIRST, "silence"), r"the server sent nothing for 0\.5 s\. This happened after 1 tokens"),
    ],
)
def test_a_broken_stream_keeps_its_text(events: tuple[Any, ...], message: str) -> None:
    with server_saying(*events) as (url, _):
        stream = HttpClient(url, idle_timeout_s=0.5).stream(REQUEST)
        assert next(stream).text == "one "
        with pytest.raises(StreamError, match=message) as caught:
            next(stream)
    assert caught.value.partial.text == "one "
    assert caught.value.partial.ending is None


def test_refusals_by_status() -> None:
    with server_saying({"error": "top_p: too high"}, status=400) as (url, _):
        for call in (HttpClient(url).generate, lambda r: list(HttpClient(url).stream(r))):
            with pytest.raises((RequestError, ServerError)) as caught:
                call(REQUEST)
            assert isinstance(caught.value, RequestError) == ("top_p" in str(caught.value))
    with (
        server_saying(status=503) as (url, _),
        pytest.raises(ServerError, match="HTTP status 503: no reason given"),
    ):
        HttpClient(url).generate(REQUEST)


def test_closing_a_stream_hangs_up() -> None:
    with server_saying("until hung up") as (url, handler):
        stream = HttpClient(url).stream(REQUEST)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        assert handler.hung_up.wait(20)


def test_nobody_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", f"grpc://127.0.0.1:{port}"):
        with connect(url) as client:
            assert not client.is_ready()
            with pytest.raises(ServerError, match="no server answers there"):
                client.generate(REQUEST)
            with pytest.raises(ServerError, match="no server answers there"):
                list(client.stream(REQUEST))


def test_a_server_that_never_answers_grpc() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        with (
            GrpcClient(f"127.0.0.1:{deaf.getsockname()[1]}", idle_timeout_s=0.5) as client,
            pytest.raises(ServerError, match=r"sent nothing for 0\.5 s"),
        ):
            list(client.stream(REQUEST))


@pytest.mark.parametrize("url", ["localhost:8001", "ftp://x", "http://", ""])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ServerError, match=r"expected (grpc|http)://HOST:PORT or http"):
        connect(url)


def test_strings_are_written_as_tritonclient_writes_them() -> None:
    texts = ["", "a", "Grüße, 世界! \U0001f680", "x" * 300]
    array = np.array([text.encode() for text in texts], dtype=object)
    raw = grpc_module._encode("STRING", texts)
    assert raw == serialize_byte_tensor(array).item()
    assert grpc_module._decode("STRING", raw) == texts
    assert [one.decode() for one in deserialize_bytes_tensor(raw)] == texts
    assert grpc_module._encode("INT32", [1, -2]) == np.array([1, -2], np.int32).tobytes()
    assert grpc_module._decode("FP32", np.array([0.5], np.float32).tobytes()) == [0.5]
