"""Talks to the Triton models over gRPC, blocking or with asyncio, many requests over one channel.

On tritonclient's generated stubs rather than its client class, which allows one stream at a time
and has no way to notice that a server fell silent.
"""

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import numpy as np

from beam_trt.client.stream import DEFAULT_IDLE_TIMEOUT_S, stream_error
from beam_trt.errors import BeamTrtError, RequestError, ServerError
from beam_trt.serving.answer import Answer, GenerateRequest, Piece
from beam_trt.triton.inputs import generate_to_inputs
from beam_trt.triton.outputs import Values, piece_from_values
from beam_trt.triton.tensors import (
    INPUT_BY_NAME,
    NUMPY_DTYPES,
    OUTPUT_BY_NAME,
    STREAMING_MODEL,
    UNARY_MODEL,
)

_MAX_MESSAGE_BYTES = 2**31 - 1
_OPTIONS = [
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
]
# With it Triton ends a failed stream with a gRPC status, which tells a bad request from a bad
# server; without, it would send the message alone.
_METADATA = (("triton_grpc_error", "true"),)
_READY_TIMEOUT_S = 5.0
# A stream that has its ending waits this long for the server to close it too. Hanging up at that
# very moment makes tritonserver 2.51 keep the request for ever, and its exit then waits in vain.
_GOODBYE_S = 1.0


class GrpcClient:
    """A blocking client of `address` ("host:port"). Thread-safe. `idle_timeout_s` is the longest
    silence it accepts within a request."""

    def __init__(self, address: str, idle_timeout_s: float = DEFAULT_IDLE_TIMEOUT_S) -> None:
        import grpc
        from tritonclient.grpc import service_pb2_grpc

        self.url = f"grpc://{address}"
        self._idle_timeout_s = idle_timeout_s
        self._channel: Any = grpc.insecure_channel(address, options=_OPTIONS)
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def is_ready(self) -> bool:
        """Whether the server answers and has loaded its models."""
        import grpc
        from tritonclient.grpc import service_pb2

        with suppress(grpc.RpcError):
            request = service_pb2.ServerReadyRequest()
            return bool(self._stub.ServerReady(request, timeout=_READY_TIMEOUT_S).ready)
        return False

    def generate(self, request: GenerateRequest) -> Answer:
        """The whole answer, through the model that answers once. Raises RequestError for what the
        server refused, ServerError for everything else."""
        import grpc

        message = _message(request, UNARY_MODEL, streaming=False)
        try:
            response = self._stub.ModelInfer(message, timeout=self._idle_timeout_s)
        except grpc.RpcError as error:
            raise _to_error(self.url, error, []) from error
        return Answer.join([piece_from_values(_values(response))])

    def stream(self, request: GenerateRequest) -> Iterator[Piece]:
        """Pieces of the answer as they come, the last with an ending. Closing the iterator cancels
        the request in the engine. Raises as `generate`, and StreamError, with what came before,
        where the server fails or goes away within the answer."""
        import grpc

        call = self._stub.ModelStreamInfer(
            iter([_message(request, STREAMING_MODEL, streaming=True)]), metadata=_METADATA
        )
        arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        reader = threading.Thread(target=_read_into, args=(call, arrived), daemon=True)
        reader.start()
        pieces: list[Piece] = []
        try:
            while not pieces or pieces[-1].ending is None:
                try:
                    item = arrived.get(timeout=self._idle_timeout_s)
                except queue.Empty:
                    raise _silent(self.url, self._idle_timeout_s, pieces) from None
                if isinstance(item, grpc.RpcError):
                    raise _to_error(self.url, item, pieces) from item
                piece = _next_piece(self.url, item, pieces)
                pieces.append(piece)
                if piece.ending is not None:
                    reader.join(_GOODBYE_S)
                yield piece
        finally:
            call.cancel()
            reader.join()


class AsyncGrpcClient:
    """The same for asyncio. Create and use it inside a running loop."""

    def __init__(self, address: str, idle_timeout_s: float = DEFAULT_IDLE_TIMEOUT_S) -> None:
        import grpc.aio
        from tritonclient.grpc import service_pb2_grpc

        self.url = f"grpc://{address}"
        self._idle_timeout_s = idle_timeout_s
        self._channel: Any = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._channel.close()

    async def generate(self, request: GenerateRequest) -> Answer:
        """As GrpcClient.generate; cancelling the task cancels the call."""
        import grpc

        message = _message(request, UNARY_MODEL, streaming=False)
        try:
            response = await self._stub.ModelInfer(message, timeout=self._idle_timeout_s)
        except grpc.RpcError as error:
            raise _to_error(self.url, error, []) from error
        return Answer.join([piece_from_values(_values(response))])

    async def stream(self, request: GenerateRequest) -> AsyncIterator[Piece]:
        """As GrpcClient.stream; closing the iterator or cancelling the task cancels the request."""
        import grpc

        call = self._stub.ModelStreamInfer(
            iter([_message(request, STREAMING_MODEL, streaming=True)]), metadata=_METADATA
        )
        pieces: list[Piece] = []
        try:
            while not pieces or pieces[-1].ending is None:
                try:
                    item = await asyncio.wait_for(call.read(), self._idle_timeout_s)
                except TimeoutError:
                    raise _silent(self.url, self._idle_timeout_s, pieces) from None
                except grpc.RpcError as error:
                    raise _to_error(self.url, error, pieces) from error
                piece = _next_piece(self.url, None if item is grpc.aio.EOF else item, pieces)
                pieces.append(piece)
                if piece.ending is not None:
                    with suppress(TimeoutError, grpc.RpcError):
                        await asyncio.wait_for(call.read(), _GOODBYE_S)
                yield piece
        finally:
            call.cancel()


def _read_into(call: Any, arrived: "queue.SimpleQueue[Any]") -> None:
    """Pass on what a call gives, then its error, or None where it ended."""
    import grpc

    try:
        for response in call:
            arrived.put(response)
        arrived.put(None)
    except grpc.RpcError as error:
        arrived.put(error)


def _next_piece(url: str, item: Any, pieces: list[Piece]) -> Piece:
    if item is None:
        raise stream_error(url, "the server ended the answer without a finish reason.", pieces)
    if item.error_message:
        raise stream_error(url, f"{item.error_message}.", pieces)
    return piece_from_values(_values(item.infer_response))


def _silent(url: str, timeout_s: float, pieces: list[Piece]) -> ServerError:
    return stream_error(url, f"the server sent nothing for {timeout_s:g} s.", pieces)


def _to_error(url: str, error: Any, pieces: list[Piece]) -> BeamTrtError:
    import grpc

    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.INVALID_ARGUMENT and not pieces:
        return RequestError(details)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        details = f"no answer in time ({details})."
    elif code is grpc.StatusCode.UNAVAILABLE and "engine" not in details:
        away = "the server went away" if pieces else "no server answers there"
        details = f"{away} ({details})."
    return stream_error(url, details, pieces)


def _message(request: GenerateRequest, model: str, streaming: bool) -> Any:
    from tritonclient.grpc import service_pb2

    message = service_pb2.ModelInferRequest(model_name=model)
    for name, values in generate_to_inputs(request, streaming).items():
        spec = INPUT_BY_NAME[name]
        datatype = "BYTES" if spec.dtype == "STRING" else spec.dtype
        message.inputs.add(name=name, datatype=datatype, shape=[len(values)])
        message.raw_input_contents.append(_encode(spec.dtype, values))
    return message


def _encode(dtype: str, values: list[Any]) -> bytes:
    if dtype != "STRING":
        return np.array(values, dtype=NUMPY_DTYPES[dtype]).tobytes()
    texts = [value.encode() for value in values]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def _values(response: Any) -> Values:
    return {
        output.name: _decode(OUTPUT_BY_NAME[output.name].dtype, raw)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
        if output.name in OUTPUT_BY_NAME
    }


def _decode(dtype: str, raw: bytes) -> list[Any]:
    if dtype != "STRING":
        return list(np.frombuffer(raw, dtype=NUMPY_DTYPES[dtype]).tolist())
    texts, at = [], 0
    while at < len(raw):
        end = at + 4 + int.from_bytes(raw[at : at + 4], "little")
        texts.append(raw[at + 4 : end].decode())
        at = end
    return texts
