"""The engine host's socket with a scripted session behind it: clients, disconnects, nonsense."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_session import FakeSession, next_token
from runtime_case import Collected, engine_config, expected_tokens, runtime_config

from beam_trt.errors import RequestError, ServerError
from beam_trt.runtime import wire
from beam_trt.runtime.executor import Executor
from beam_trt.runtime.host import Host
from beam_trt.runtime.host_client import EngineClient
from beam_trt.runtime.request import Request, RequestOutput, SamplingParams

WAIT_S = 30.0
PROMPT = (5, 6, 7, 8)


class WaitingSink(Collected):
    def __init__(self) -> None:
        super().__init__()
        self.started = threading.Event()
        self.ended = threading.Event()

    def __call__(self, output: RequestOutput) -> None:
        super().__call__(output)
        self.started.set()
        if output.is_last:
            self.ended.set()

    def wait(self) -> RequestOutput:
        assert self.ended.wait(WAIT_S), self.outputs
        return self.last


@contextmanager
def hosted(folder: Path, step_s: float = 0.0, **runtime: Any) -> Iterator[tuple[Host, Path]]:
    config = runtime_config(**runtime)

    def slow_token(known: Any, vocab_size: int) -> int:
        time.sleep(step_s)
        return next_token(known, vocab_size)

    session = FakeSession(97, config.tokens_per_block, 6, config.max_num_tokens, slow_token)
    engine = engine_config(6)
    path = folder / "engine.sock"
    host = Host(engine, config, Executor(session, engine, config), path)
    host.start()
    try:
        yield host, path
    finally:
        host.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "condition never came true"
        time.sleep(0.005)


def endless(request_id: str = "endless") -> Request:
    return Request(request_id, PROMPT, SamplingParams(max_tokens=250, ignore_eos=True))


def test_two_clients_use_the_same_ids(tmp_path: Path) -> None:
    with hosted(tmp_path) as (_, path), EngineClient(path) as one, EngineClient(path) as two:
        sinks = [WaitingSink() for _ in range(20)]
        for number, sink in enumerate(sinks):
            client = one if number % 2 else two
            request = Request(f"r{number // 2}", (number, 9), SamplingParams(max_tokens=10))
            client.submit(request, sink)
        for number, sink in enumerate(sinks):
            assert sink.wait().request_id == f"r{number // 2}"
            assert sink.token_ids == expected_tokens((number, 9), 10)
        wait_until(lambda: one.stats()["num_running"] == 0)
        assert one.stats()["total_finished"] == 20


def test_info_limits_ping_and_stats(tmp_path: Path) -> None:
    with hosted(tmp_path) as (host, path), EngineClient(path) as client:
        info = client.info()
        assert info["engine"]["pretrained_config"]["vocab_size"] == 97
        assert info["runtime"]["max_batch_size"] == 4
        assert info["tokenizer_dir"].endswith("tokenizer")
        assert client.limits == host.executor.limits
        ping = client.ping()
        assert (ping["healthy"], ping["idle"], ping["reason"]) == (True, True, None)
        assert client.stats()["full_blocks_free"] == 40


def test_what_can_never_run_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    with hosted(tmp_path) as (_, path), EngineClient(path) as client:
        with pytest.raises(RequestError, match="longer than the limit"):
            client.submit(Request("a", (3,) * 300, SamplingParams()), WaitingSink())
        client.submit(endless("a"), WaitingSink())
        with pytest.raises(RequestError, match="still open"):
            client.submit(endless("a"), WaitingSink())


def test_a_full_queue_is_answered_with_an_error(tmp_path: Path) -> None:
    limits = {"max_batch_size": 1, "max_queued_requests": 0}
    with hosted(tmp_path, 0.01, **limits) as (_, path), EngineClient(path) as client:
        first, second, third = WaitingSink(), WaitingSink(), WaitingSink()
        client.submit(endless("first"), first)
        client.submit(endless("second"), second)
        assert "queue is full" in str(second.wait().error)
        client.cancel("first")
        assert first.wait().finish_reason == "cancelled"
        client.submit(Request("second", PROMPT, SamplingParams(max_tokens=2)), third)
        assert third.wait().finish_reason in ("length", "stop")


def test_a_client_that_disconnects_cancels_its_requests_only(tmp_path: Path) -> None:
    with hosted(tmp_path, 0.01) as (host, path), EngineClient(path) as staying:
        leaving = EngineClient(path)
        left, kept = WaitingSink(), WaitingSink()
        leaving.submit(endless(), left)
        staying.submit(Request("kept", PROMPT, SamplingParams(max_tokens=40)), kept)
        assert left.started.wait(WAIT_S)
        leaving.close()
        wait_until(lambda: host.executor.stats().total_cancelled == 1)
        assert left.last.finish_reason == "error"
        kept.wait()
        assert kept.token_ids == expected_tokens(PROMPT, 40)
        wait_until(lambda: host.executor.num_open == 0)
        host.executor.check_integrity()
        with pytest.raises(ServerError, match="went away"):
            leaving.submit(endless("late"), WaitingSink())


def test_a_sink_that_raises_cancels_its_request(tmp_path: Path) -> None:
    def broken(output: RequestOutput) -> None:
        raise ValueError("sink")

    with hosted(tmp_path, 0.01) as (host, path), EngineClient(path) as client:
        client.submit(endless("broken"), broken)
        sink = WaitingSink()
        client.submit(Request("good", PROMPT, SamplingParams(max_tokens=5)), sink)
        sink.wait()
        wait_until(lambda: host.executor.stats().total_cancelled == 1)


def test_outputs_of_one_step_are_one_message(tmp_path: Path) -> None:
    with hosted(tmp_path) as (_, path), raw_client(path) as (connection, lines):
        for number in range(4):
            request = Request(f"r{number}", PROMPT, SamplingParams(max_tokens=30, ignore_eos=True))
            connection.sendall(
                wire.encode({"op": "submit", "request": wire.request_to_dict(request)})
            )
        ended, most = 0, 0
        while ended < 4:
            message = json.loads(lines.readline())
            assert message["op"] == "outputs"
            ids = [output["request_id"] for output in message["outputs"]]
            assert len(set(ids)) == len(ids)
            most = max(most, len(ids))
            ended += sum(output["finish_reason"] is not None for output in message["outputs"])
        assert most == 4


@contextmanager
def raw_client(path: Path) -> Iterator[tuple[socket.socket, Any]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(str(path))
        with connection.makefile("rb") as lines:
            assert json.loads(lines.readline())["op"] == "hello"
            yield connection, lines


@pytest.mark.parametrize(
    "nonsense", [b"GET / HTTP/1.1\r\n", b"[1]\n", b'{"op":"dance"}\n', b'{"no":1}\n', b"\xff\n"]
)
def test_nonsense_disconnects_its_sender_alone(tmp_path: Path, nonsense: bytes) -> None:
    with hosted(tmp_path) as (_, path), EngineClient(path) as good:
        with raw_client(path) as (connection, lines):
            connection.sendall(nonsense)
            assert lines.readline() == b""
        assert good.ping()["healthy"]


def test_a_bad_request_from_a_raw_client_is_answered(tmp_path: Path) -> None:
    with hosted(tmp_path) as (_, path), raw_client(path) as (connection, lines):
        values = {"request_id": "a", "prompt_ids": [1], "sampling": {"top_p": 7}}
        connection.sendall(wire.encode({"op": "submit", "request": values}))
        (output,) = json.loads(lines.readline())["outputs"]
        assert output["finish_reason"] == "error"
        assert "top_p: expected" in output["error"]


def test_closing_the_host_ends_every_request_and_removes_the_socket(tmp_path: Path) -> None:
    with hosted(tmp_path, 0.01) as (host, path):
        client = EngineClient(path)
        sink = WaitingSink()
        client.submit(endless(), sink)
        assert sink.started.wait(WAIT_S)
        host.close()
        assert sink.wait().finish_reason == "cancelled"
        assert not path.exists()
        with pytest.raises(ServerError, match="no engine host answers"):
            EngineClient(path)
        client.close()


def test_draining_lets_requests_finish_and_refuses_new_ones(tmp_path: Path) -> None:
    with hosted(tmp_path, 0.01) as (host, path), EngineClient(path) as client:
        sink, late = WaitingSink(), WaitingSink()
        client.submit(Request("a", PROMPT, SamplingParams(max_tokens=30, ignore_eos=True)), sink)
        assert sink.started.wait(WAIT_S)
        closer = threading.Thread(target=host.close, args=(WAIT_S,))
        closer.start()
        wait_until(lambda: not path.exists())
        client.submit(Request("late", PROMPT, SamplingParams(max_tokens=3)), late)
        assert "stopping" in str(late.wait().error)
        assert sink.wait().finish_reason == "length"
        closer.join()


def test_a_dead_hosts_socket_is_replaced_and_a_living_ones_is_not(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    with hosted(tmp_path) as (host, _):
        with pytest.raises(ServerError, match="another engine host serves there"):
            Host(engine_config(), runtime_config(), host.executor, path)
        with EngineClient(path) as client:
            assert client.ping()["healthy"]
        assert path.stat().st_mode & 0o077 == 0


def test_a_socket_path_that_cannot_be_says_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerError, match="Use another --socket: at most 107 bytes"),
        hosted(tmp_path / ("x" * 120)),
    ):
        pass


def test_a_server_of_another_kind_is_no_engine_host(tmp_path: Path) -> None:
    for greeting, message in (
        (b"SSH-2.0\n", "expected an engine host"),
        (b'{"op":"hello","protocol":99}\n', "speaks protocol 99, this client 1"),
    ):
        path = tmp_path / f"{len(greeting)}.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen()
            thread = threading.Thread(target=greet, args=(listener, greeting))
            thread.start()
            with pytest.raises(ServerError, match=message):
                EngineClient(path)
            thread.join()


def greet(listener: socket.socket, greeting: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(greeting)
        connection.recv(1)
