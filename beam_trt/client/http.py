"""Talks to the Triton models over HTTP: /generate, and /generate_stream with its server-sent
events. Only the standard library, one connection a request."""

import http.client
import json
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import urlsplit

from beam_trt.client.stream import DEFAULT_IDLE_TIMEOUT_S, stream_error
from beam_trt.errors import BeamTrtError, RequestError, ServerError
from beam_trt.serving.answer import Answer, GenerateRequest, Piece
from beam_trt.triton.inputs import generate_to_inputs
from beam_trt.triton.outputs import Values, piece_from_values
from beam_trt.triton.tensors import INPUT_BY_NAME, OUTPUT_BY_NAME, STREAMING_MODEL, UNARY_MODEL

_GONE = (OSError, http.client.HTTPException)
_READY_TIMEOUT_S = 5.0


class HttpClient:
    """A blocking client of `url` ("http://host:port"). Thread-safe. `idle_timeout_s` is the longest
    silence it accepts within a request."""

    def __init__(self, url: str, idle_timeout_s: float = DEFAULT_IDLE_TIMEOUT_S) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServerError(f"{url}: expected http://HOST:PORT or https://HOST:PORT.")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._host = parts.netloc
        self._is_tls = parts.scheme == "https"
        self._idle_timeout_s = idle_timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing stays open between requests."""

    def is_ready(self) -> bool:
        """Whether the server answers and has loaded its models."""
        connection = self._connect(_READY_TIMEOUT_S)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except _GONE:
            return False
        finally:
            connection.close()

    def generate(self, request: GenerateRequest) -> Answer:
        """The whole answer, through the model that answers once. Raises RequestError for what the
        server refused, ServerError for everything else."""
        connection = self._connect(self._idle_timeout_s)
        try:
            with self._post(
                connection, UNARY_MODEL, "generate", request, streaming=False
            ) as response:
                body = response.read()
        except _GONE as error:
            raise ServerError(f"{self.url}: the server went away ({_say(error)}).") from error
        finally:
            connection.close()
        if response.status != 200:
            raise self._refused(response.status, body)
        return Answer.join([piece_from_values(_values(json.loads(body)))])

    def stream(self, request: GenerateRequest) -> Iterator[Piece]:
        """Pieces of the answer as they come, the last with an ending. Closing the iterator hangs
        up, which cancels the request in the engine. Raises as `generate`, and StreamError, with
        what came before, where the server fails or goes away within the answer."""
        connection = self._connect(self._idle_timeout_s)
        pieces: list[Piece] = []
        try:
            # The response may own the socket, so closing the connection would not hang up.
            with self._post(
                connection, STREAMING_MODEL, "generate_stream", request, streaming=True
            ) as response:
                if response.status != 200:
                    raise self._refused(response.status, response.read())
                for event in _events(response):
                    if "error" in event:
                        raise stream_error(self.url, f"{event['error']}.", pieces)
                    pieces.append(piece_from_values(_values(event)))
                    yield pieces[-1]
                    if pieces[-1].ending is not None:
                        return
        except TimeoutError as error:
            what = f"the server sent nothing for {self._idle_timeout_s:g} s."
            raise stream_error(self.url, what, pieces) from error
        except _GONE as error:
            what = f"the server went away ({_say(error)})."
            raise stream_error(self.url, what, pieces) from error
        finally:
            connection.close()
        what = "the server went away: it ended the answer without a finish reason."
        raise stream_error(self.url, what, pieces)

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._is_tls:
            return http.client.HTTPSConnection(self._host, timeout=timeout_s)
        return http.client.HTTPConnection(self._host, timeout=timeout_s)

    def _post(
        self,
        connection: http.client.HTTPConnection,
        model: str,
        verb: str,
        request: GenerateRequest,
        streaming: bool,
    ) -> http.client.HTTPResponse:
        body = {
            name: values if INPUT_BY_NAME[name].is_list else values[0]
            for name, values in generate_to_inputs(request, streaming).items()
        }
        try:
            connection.connect()
        except OSError as error:
            raise ServerError(
                f"{self.url}: no server answers there ({_say(error)}). "
                "Start one with beam-trt serve, or give another --url."
            ) from error
        # Named JSON explicitly: as a form, which is the default of many clients, a large body
        # crashes Triton 2.51.
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/v2/models/{model}/{verb}", json.dumps(body), headers)
        return connection.getresponse()

    def _refused(self, status: int, body: bytes) -> BeamTrtError:
        text = body.decode(errors="replace").strip().removeprefix("data: ")
        try:
            text = str(json.loads(text)["error"])
        except (ValueError, KeyError, TypeError):
            text = text or "no reason given"
        if status == 400:
            return RequestError(text)
        return ServerError(f"{self.url}: HTTP status {status}: {text}")


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON objects of the "data:" lines; other lines of the event format are skipped."""
    while line := response.readline():
        if line.startswith(b"data:"):
            yield json.loads(line[len(b"data:") :])


def _values(body: dict[str, Any]) -> Values:
    """Triton writes an output of one element as a plain value."""
    return {
        name: value if isinstance(value, list) else [value]
        for name, value in body.items()
        if name in OUTPUT_BY_NAME
    }


def _say(error: Exception) -> str:
    return str(error) or type(error).__name__
