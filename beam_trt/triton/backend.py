"""What both Triton models are: requests in from Triton, through the engine host, responses out.

`execute` only takes requests; admission threads check and tokenize them; the engine client's
reader hands outputs over; sender threads turn them into responses. One request stays on one sender
thread, so its responses keep their order, and outputs that arrive while its sender is busy go out
as one response. Every request is answered exactly once with a final response, whatever happens.
"""

import itertools
import json
import queue
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from beam_trt import __version__
from beam_trt.errors import BeamTrtError, EngineError, RequestError, ServerError
from beam_trt.runtime.request import RequestOutput
from beam_trt.serving.answer import AnswerBuilder
from beam_trt.serving.chat import ChatFormat
from beam_trt.serving.text import Tokenizer
from beam_trt.triton.engine_host import EngineLink, run_folder
from beam_trt.triton.inputs import TritonRequest, read_inputs
from beam_trt.triton.outputs import Values, piece_to_values
from beam_trt.triton.repository import REPOSITORY_FORMAT
from beam_trt.triton.tensors import NUMPY_DTYPES, OUTPUT_BY_NAME, STREAMING_MODEL

NUM_SENDERS = 4
NUM_ADMITTERS = 2
_SWEEP_S = 0.1


class Backend:
    """One model instance. `pb` is Triton's triton_python_backend_utils, `args` what Triton gives
    to initialize. Raises EngineError or ServerError, whose message Triton shows as the reason why
    the model did not load."""

    def __init__(self, pb: Any, args: dict[str, str]) -> None:
        self._pb = pb
        self._model = args["model_name"]
        self._can_stream = self._model == STREAMING_MODEL
        engine_dir = _engine_dir(args)
        self._tokenizer = Tokenizer(engine_dir / "tokenizer")
        self._chat = ChatFormat(self._tokenizer)
        self._link = EngineLink(
            run_folder(), engine_dir if self._can_stream else None, pb.Logger.log_warn
        )
        self._ids = itertools.count()
        self._open: set[_OpenRequest] = set()
        self._closing = threading.Event()
        self._admitters = [_Worker(f"admit-{n}") for n in range(NUM_ADMITTERS)]
        self._senders = [_Worker(f"send-{n}") for n in range(NUM_SENDERS)]
        self._sweeper = threading.Thread(target=self._sweep, name="sweep", daemon=True)
        self._sweeper.start()

    def execute(self, requests: list[Any]) -> None:
        """Take requests; their responses come later, from other threads."""
        for request in requests:
            number = next(self._ids)
            sender = self._senders[number % NUM_SENDERS]
            one = _OpenRequest(self, request, f"{self._model}-{number}", sender)
            self._open.add(one)
            if one.read(request):
                self._admitters[number % NUM_ADMITTERS].put(one.admit)

    def close(self) -> None:
        """Triton calls it when no request is open, or when it will wait no longer."""
        self._closing.set()
        self._sweeper.join()
        self._link.close()  # ends what is still open, through the senders
        for worker in (*self._admitters, *self._senders):
            worker.close()

    def forget(self, request: "_OpenRequest") -> None:
        self._open.discard(request)

    def prepare(self, request: TritonRequest) -> AnswerBuilder:
        return AnswerBuilder(request.generate, self._tokenizer, self._chat)

    @property
    def pb(self) -> Any:
        return self._pb

    @property
    def link(self) -> EngineLink:
        return self._link

    @property
    def can_stream(self) -> bool:
        return self._can_stream

    def _sweep(self) -> None:
        """Notice cancelled requests that wait in the engine's queue and so have no steps."""
        while not self._closing.wait(_SWEEP_S):
            for request in list(self._open):
                request.check_cancelled()


class _OpenRequest:
    """One request between execute and its final response."""

    def __init__(self, backend: Backend, request: Any, request_id: str, sender: "_Worker") -> None:
        self._backend = backend
        self._id = request_id
        self._worker = sender
        self._response_sender = request.get_response_sender()
        self._raw: dict[str, list[Any]] = {}
        self._parameters: dict[str, Any] = {}
        self._request: TritonRequest | None = None
        self._answer: AnswerBuilder | None = None
        self._echo = ""
        self._cancel: Callable[[], None] = _nothing  # until the request is in the engine
        self._lock = threading.Lock()
        self._pending: list[RequestOutput] = []
        self._is_scheduled = False
        self._is_cancelled = False
        self._is_done = False

    def read(self, request: Any) -> bool:
        """Copy the inputs, which live in shared memory only while Triton's request does. False
        where that failed and was answered."""
        try:
            self._raw = {tensor.name(): _to_list(tensor.as_numpy()) for tensor in request.inputs()}
            self._parameters = json.loads(request.parameters() or "{}")
        except Exception as error:  # noqa: BLE001  every request must be answered, see _fail
            self._fail(error)
            return False
        return True

    def admit(self) -> None:
        """Check, tokenize, submit. On an admission thread."""
        try:
            self._request = read_inputs(self._raw, self._parameters, self._backend.can_stream)
            self._raw = {}
            self._answer = self._backend.prepare(self._request)
            if not self._request.exclude_input:
                self._echo = self._answer.prompt.text
            self._submit(self._answer)
        except Exception as error:  # noqa: BLE001  every request must be answered, see _fail
            self._fail(error)

    def _submit(self, answer: AnswerBuilder) -> None:
        """Hand over to the engine; to the restarted one where it just died, since nothing of this
        request had reached it."""
        for is_last_try in (False, True):
            client = self._backend.link.client()
            self._cancel = partial(client.cancel, self._id)
            request = answer.engine_request(self._id, client.limits.max_seq_len)
            try:
                client.submit(request, self._sink)
                return
            except ServerError:
                if is_last_try:
                    raise
                self._backend.link.lost(client)

    def check_cancelled(self) -> None:
        """Pass a client's cancellation on to the engine, whose last output ends the request."""
        if self._is_cancelled or self._is_done or self._cancel is _nothing:
            return
        if self._response_sender.is_cancelled():
            self._is_cancelled = True
            self._cancel()

    def _sink(self, output: RequestOutput) -> None:
        """Takes an output on the engine client's thread."""
        with self._lock:
            self._pending.append(output)
            if self._is_scheduled:
                return
            self._is_scheduled = True
        self._worker.put(self._advance)

    def _advance(self) -> None:
        """Send what has arrived. On this request's sender thread."""
        with self._lock:
            outputs, self._pending = self._pending, []
            self._is_scheduled = False
        if self._is_done:
            return
        try:
            self._send_outputs(outputs)
        except Exception as error:  # noqa: BLE001  every request must be answered, see _fail
            self._cancel()
            self._fail(error)

    def _send_outputs(self, outputs: list[RequestOutput]) -> None:
        assert self._request is not None
        assert self._answer is not None
        self.check_cancelled()
        last = outputs[-1]
        if last.finish_reason == "cancelled":
            self._end(self._error("the request was cancelled", "CANCELLED"))
            return
        failed = last.finish_reason == "error"
        for output in outputs[:-1] if failed else outputs:
            self._answer.add(output)
        if self._answer.stopped_early:
            self._cancel()
        if self._answer.is_complete:
            self._end(self._response(self._take(last)))
        elif self._request.streaming and not self._is_cancelled and self._has_news():
            self._response_sender.send(self._response(self._take(last)))
        if failed and not self._is_done:
            raise ServerError(last.error or "the engine failed without saying why")

    def _has_news(self) -> bool:
        """Text, or tokens for a client that asked for their ids."""
        assert self._request is not None
        assert self._answer is not None
        wants_ids = "return_output_ids" in self._request.asked
        return self._answer.has_text or (wants_ids and self._answer.has_tokens)

    def _take(self, last: RequestOutput) -> Values:
        assert self._request is not None
        assert self._answer is not None
        piece = self._answer.take(last)
        echo, self._echo = self._echo, ""
        is_chat = self._request.generate.chat is not None
        return piece_to_values(piece, is_chat, self._request.asked, echo)

    def _response(self, values: Values) -> Any:
        pb = self._backend.pb
        tensors = []
        for name, items in values.items():
            dtype = NUMPY_DTYPES[OUTPUT_BY_NAME[name].dtype]
            if dtype == "object":
                items = [item.encode() for item in items]
            tensors.append(pb.Tensor(name, np.array(items, dtype=dtype)))
        return pb.InferenceResponse(output_tensors=tensors)

    def _error(self, message: str, code: str) -> Any:
        pb = self._backend.pb
        error = pb.TritonError(message, getattr(pb.TritonError, code))
        return pb.InferenceResponse(output_tensors=[], error=error)

    def _fail(self, error: Exception) -> None:
        """Answer with an error. A bug of ours is answered like a user's mistake, only said so."""
        if isinstance(error, RequestError):
            response = self._error(str(error), "INVALID_ARG")
        elif isinstance(error, BeamTrtError):
            response = self._error(str(error), "UNAVAILABLE")
        else:
            message = f"internal error of beam-trt: {type(error).__name__}: {error}"
            self._backend.pb.Logger.log_error(f"request {self._id}: {message}")
            response = self._error(message, "INTERNAL")
        self._end(response)

    def _end(self, response: Any) -> None:
        self._is_done = True
        self._backend.forget(self)
        final = self._backend.pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self._response_sender.send(response, flags=final)


class _Worker:
    """A thread that runs what it is given, in order."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        self._queue.put(job)

    def close(self) -> None:
        """Finish what was put before, then end."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            job()


def _engine_dir(args: dict[str, str]) -> Path:
    parameters = json.loads(args["model_config"])["parameters"]
    found = parameters["repository_format"]["string_value"]
    model_dir = Path(args["model_repository"])
    if found != str(REPOSITORY_FORMAT):
        raise EngineError(
            f"{model_dir}: written in repository format {found}; this is beam-trt {__version__}, "
            f"which runs format {REPOSITORY_FORMAT}. Write it anew with `beam-trt repo`."
        )
    relative: str = parameters["engine"]["string_value"]
    engine_dir = (model_dir.parent / relative).resolve()
    if not engine_dir.is_dir():
        raise EngineError(
            f"{engine_dir}: no such folder, but {model_dir}/config.pbtxt names it as the engine. "
            "Move the engine with the repository, or write the repository anew: `beam-trt repo`."
        )
    return engine_dir


def _nothing() -> None:
    pass


def _to_list(array: Any) -> list[Any]:
    """Flat Python values. An FP32 number becomes the shortest decimal that means it, which is the
    one the client wrote: 0.7 rather than 0.699999988."""
    if array.dtype == "float32":
        return [float(str(value)) for value in array.ravel()]
    return list(array.ravel().tolist())
