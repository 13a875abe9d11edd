"""The model's threads without Triton: a stand-in for its Python API, and a scripted engine."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_tokenizer import tiny_tokenizer

from beam_trt.errors import EngineError, ServerError
from beam_trt.runtime.request import (
    Request,
    RequestLimits,
    RequestOutput,
    SamplingParams,
    Timings,
    Usage,
)
from beam_trt.triton import backend as backend_module
from beam_trt.triton.backend import Backend

FINAL = 1


class ResponseSender:
    """Triton's sender of one request: counts what must be exactly one, the final response."""

    def __init__(self) -> None:
        self.responses: list[Any] = []
        self.cancelled = False
        self.done = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def send(self, response: Any, flags: int = 0) -> None:
        self.gate.wait(20)
        assert not self.done.is_set(), "a response after the final one"
        self.responses.append(response)
        if flags == FINAL:
            self.done.set()

    def is_cancelled(self) -> bool:
        return self.cancelled

    @property
    def texts(self) -> list[str]:
        return [r.tensors["text_output"][0].decode() for r in self.responses if not r.error]


class FakeRequest:
    def __init__(self, inputs: dict[str, Any], parameters: str = "{}") -> None:
        self.sender = ResponseSender()
        self._inputs = inputs
        self._parameters = parameters

    def get_response_sender(self) -> ResponseSender:
        return self.sender

    def inputs(self) -> list[Any]:
        return [
            SimpleNamespace(name=lambda n=n: n, as_numpy=lambda v=v: v)
            for n, v in self._inputs.items()
        ]

    def parameters(self) -> str:
        return self._parameters


def text_request(text: str, streaming: bool = True, **inputs: Any) -> FakeRequest:
    values = {
        "text_input": np.array([text.encode()], dtype=object),
        "streaming": np.array([streaming]),
    }
    return FakeRequest(values | {name: np.array([value]) for name, value in inputs.items()})


class Error:
    INVALID_ARG, UNAVAILABLE, CANCELLED, INTERNAL = (
        "invalid",
        "unavailable",
        "cancelled",
        "internal",
    )

    def __init__(self, message: str, code: str) -> None:
        self.message, self.code = message, code


def _response(output_tensors: list[Any], error: Any = None) -> Any:
    return SimpleNamespace(tensors=dict(output_tensors), error=error)


PB = SimpleNamespace(
    Tensor=lambda name, array: (name, array),
    InferenceResponse=_response,
    TritonError=Error,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL,
    Logger=SimpleNamespace(log_warn=print, log_error=print),
)


class ScriptedEngine:
    """Stands for link and client: the test hands out outputs itself."""

    limits = RequestLimits(vocab_size=2048, max_seq_len=64, max_cached_tokens=10**6)

    def __init__(self) -> None:
        self.sinks: dict[str, Callable[[RequestOutput], None]] = {}
        self.requests: dict[str, Request] = {}
        self.cancelled: list[str] = []
        self.num_lost = 0
        self.gone = 0

    def client(self) -> "ScriptedEngine":
        return self

    def lost(self, client: "ScriptedEngine") -> None:
        self.num_lost += 1

    def submit(self, request: Request, sink: Callable[[RequestOutput], None]) -> None:
        if self.gone:
            self.gone -= 1
            raise ServerError("the host went away")
        self.limits.check(request)
        self.requests[request.request_id], self.sinks[request.request_id] = request, sink

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def close(self) -> None:
        pass

    def wait(self, count: int = 1) -> list[str]:
        deadline = time.monotonic() + 20
        while len(self.sinks) < count and time.monotonic() < deadline:
            time.sleep(0.005)
        assert len(self.sinks) == count
        return list(self.sinks)

    def put(self, request_id: str, text: str = "", finish: Any = None, **fields: Any) -> None:
        ids = tiny_tokenizer().encode(text) if text else ()
        output = RequestOutput(
            request_id=request_id,
            token_ids=ids,
            logprobs=None,
            finish_reason=finish,
            stop_token_id=fields.get("stop_token_id"),
            error=fields.get("error"),
            usage=Usage(3, 9),
            timings=Timings(1),
        )
        self.sinks[request_id](output)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    scripted = ScriptedEngine()
    monkeypatch.setattr(backend_module, "EngineLink", lambda *_: scripted)
    return scripted


@pytest.fixture
def backend(
    engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Backend]:
    monkeypatch.setenv("BEAM_TRT_RUN_DIR", str(tmp_path / "run"))
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "tokenizer").symlink_to(tiny_tokenizer().folder)
    running = Backend(PB, arguments(tmp_path))
    yield running
    running.close()


def arguments(folder: Path, version: str = "1") -> dict[str, str]:
    parameters = {"engine": "../engine", "repository_format": version}
    config = {"parameters": {k: {"string_value": v} for k, v in parameters.items()}}
    return {
        "model_name": "beam",
        "model_repository": str(folder / "repository" / "beam"),
        "model_config": json.dumps(config),
    }


def test_outputs_that_arrive_while_the_sender_is_busy_go_out_as_one(
    backend: Backend, engine: ScriptedEngine
) -> None:
    request = text_request("hi")
    request.sender.gate.clear()
    backend.execute([request])
    [one] = engine.wait()
    for word in ("one ", "two ", "three "):
        engine.put(one, word)
    engine.put(one, "end", "length")
    request.sender.gate.set()
    assert request.sender.done.wait(20)
    assert "".join(request.sender.texts) == "one two three end"
    assert len(request.sender.responses) <= 2
    assert request.sender.responses[-1].tensors["finish_reason"][0] == b"length"


def test_a_request_that_does_not_stream_is_answered_once(
    backend: Backend, engine: ScriptedEngine
) -> None:
    request = text_request("hi", streaming=False)
    backend.execute([request])
    [one] = engine.wait()
    for word in ("one ", "two "):
        engine.put(one, word)
    engine.put(one, "end<|return|>", "stop", stop_token_id=3)
    assert request.sender.done.wait(20)
    assert request.sender.texts == ["one two end"]


def test_a_stop_string_inside_one_output_cancels_the_rest(
    backend: Backend, engine: ScriptedEngine
) -> None:
    request = text_request("hi", stop_words=b"STOP", return_output_ids=True)
    backend.execute([request])
    [one] = engine.wait()
    engine.put(one, "keep STOP and never this")
    assert request.sender.done.wait(20)
    engine.put(one, "late", "cancelled")  # the engine's answer to the cancellation
    assert request.sender.texts == ["keep "]
    assert engine.cancelled == [one]
    ids = request.sender.responses[0].tensors["output_ids"]
    assert tiny_tokenizer().decode(ids.tolist()).startswith("keep STOP")
    assert "never" not in tiny_tokenizer().decode(ids.tolist())


def test_a_cancelled_request_that_only_waits_is_cancelled_in_the_engine(
    backend: Backend, engine: ScriptedEngine
) -> None:
    request = text_request("hi")
    backend.execute([request])
    [one] = engine.wait()
    request.sender.cancelled = True
    deadline = time.monotonic() + 20
    while not engine.cancelled and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine.cancelled == [one]
    engine.put(one, finish="cancelled")
    assert request.sender.done.wait(20)
    assert request.sender.responses[0].error.code == "cancelled"


def test_a_failed_engine_keeps_what_came_before(backend: Backend, engine: ScriptedEngine) -> None:
    request = text_request("hi")
    request.sender.gate.clear()
    backend.execute([request])
    [one] = engine.wait()
    engine.put(one, "so far")
    engine.put(one, finish="error", error="a rank died")
    request.sender.gate.set()
    assert request.sender.done.wait(20)
    assert request.sender.texts == ["so far"]
    error = request.sender.responses[-1].error
    assert (error.code, error.message) == ("unavailable", "a rank died")


def test_bad_requests_and_bugs_are_answered(
    backend: Backend, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = text_request("hi", max_tokens=0)
    too_long = text_request("hi", max_tokens=65)
    broken = FakeRequest({"text_input": np.array([b"hi"], dtype=object)}, "{no json")
    backend.execute([bad, too_long, broken])
    for request, code, message in (
        (bad, "invalid", "max_tokens: expected an integer at least 1, got 0"),
        (too_long, "invalid", "over the limit max_seq_len 64"),
        (broken, "internal", "internal error of beam-trt: JSONDecodeError"),
    ):
        assert request.sender.done.wait(20)
        [response] = request.sender.responses
        assert response.error.code == code
        assert message in response.error.message

    bug = text_request("hi")
    backend.execute([bug])
    [one] = engine.wait()
    monkeypatch.setattr(backend_module, "piece_to_values", lambda *_: 1 / 0)
    engine.put(one, "text")
    assert bug.sender.done.wait(20)
    assert "ZeroDivisionError" in bug.sender.responses[-1].error.message
    assert engine.cancelled == [one]


def test_a_request_goes_to_the_restarted_engine_when_the_first_just_died(
    backend: Backend, engine: ScriptedEngine
) -> None:
    engine.gone = 1
    request = text_request("hi")
    backend.execute([request])
    [one] = engine.wait()
    engine.put(one, "x", "length")
    assert request.sender.done.wait(20)
    assert request.sender.texts == ["x"]
    assert engine.num_lost == 1
    engine.gone = 2
    request = text_request("hi")
    backend.execute([request])
    assert request.sender.done.wait(20)
    assert request.sender.responses[0].error.message == "the host went away"


def test_max_tokens_shrinks_only_when_nobody_chose_it(
    backend: Backend, engine: ScriptedEngine
) -> None:
    ids = np.arange(300, 360, dtype=np.int32)  # 60 of the engine's 64
    request = FakeRequest({"input_ids": ids})
    backend.execute([request])
    [one] = engine.wait()
    assert engine.requests[one].sampling == SamplingParams(max_tokens=4)
    engine.put(one, "x", "length")
    assert request.sender.done.wait(20)


def test_repository_of_another_format_or_without_its_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="written in repository format 99; this is beam-trt"):
        Backend(PB, arguments(tmp_path, version="99"))
    with pytest.raises(EngineError, match=r"no such folder, but .* names it as the engine"):
        Backend(PB, arguments(tmp_path))
