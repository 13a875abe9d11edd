"""Starting, stopping and dying: the real tritonserver over a fake engine host, which starts fast
and can be killed at will. Nothing may hang, and nothing may be left behind."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from fake_engine_host import fake_python
from triton_serving import server_options

from beam_trt.client import grpc as grpc_client
from beam_trt.client.connect import connect
from beam_trt.client.grpc import AsyncGrpcClient
from beam_trt.client.stream import StreamError
from beam_trt.errors import ServerError
from beam_trt.runtime.request import SamplingParams
from beam_trt.serving.answer import GenerateRequest
from beam_trt.triton.ports import check_port_free
from beam_trt.triton.processes import ProcessInfo, session_members
from beam_trt.triton.repository import render_repository
from beam_trt.triton.server import ServerOptions, TritonServer, find_repository

LONG = GenerateRequest(text="Hello world", sampling=SamplingParams(max_tokens=4000))
"""Forty seconds of answer: whatever ends it earlier ended it on purpose."""
SHORT = GenerateRequest(text="Hello world", sampling=SamplingParams(max_tokens=5))
SECONDS = 10
"""Within which a client must hear of any death; a hang would last for ever."""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build whose engine the fake host can serve."""
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "config.json").write_text("{}")
    tiny = Path(str(files("beam_trt.assets").joinpath("beam_tiny")))
    tokenizer = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    (tmp_path / "engine" / "tokenizer").mkdir()
    for name in tokenizer:
        shutil.copyfile(tiny / name, tmp_path / "engine" / "tokenizer" / name)
    for name, text in render_repository("../engine").items():
        path = tmp_path / "triton_repo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("BEAM_TRT_PYTHON", str(fake_python(tmp_path)))
    return tmp_path


@pytest.fixture
def options(build: Path) -> ServerOptions:
    return server_options(find_repository(build), exit_timeout_s=2)


@pytest.fixture
def server(options: ServerOptions) -> Iterator[TritonServer]:
    with TritonServer(options) as running:
        yield running


def living(session: int) -> list[ProcessInfo]:
    return [info for info in session_members(session) if info.is_alive]


def assert_nothing_left(server: TritonServer, run_dir: Path) -> None:
    assert living(server.pid) == []
    assert not run_dir.exists()
    assert not list(Path("/dev/shm").glob(f"{server.shm_prefix}*"))
    options = server.options
    for port in (options.http_port, options.grpc_port, options.metrics_port):
        check_port_free(options.host, port, "--port")


def process_of(server: TritonServer, word: str) -> int:
    """Pid of the one living process of the server with `word` in its command line."""
    [pid] = [info.pid for info in living(server.pid) if word in " ".join(info.command)]
    return pid


def test_a_stop_leaves_nothing_though_a_stream_is_open(options: ServerOptions) -> None:
    server = TritonServer(options)
    with server:
        assert len(living(server.pid)) == 4  # tritonserver, two stubs, the engine host
        run_dir = server.engine_socket.parent
        assert list(Path("/dev/shm").glob(f"{server.shm_prefix}*"))
        stream = connect(server.grpc_url).stream(LONG)
        next(stream)
        began = time.monotonic()
    assert time.monotonic() - began < options.exit_timeout_s + SECONDS
    assert_nothing_left(server, run_dir)
    with pytest.raises(StreamError, match=r"after \d+ tokens; the text so far is kept"):
        list(stream)


def test_streams_that_tritonserver_forgot_do_not_hold_up_a_stop(
    options: ServerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that hangs up the moment its answer is complete leaves tritonserver 2.51 waiting for
    that request until its exit timeout."""
    monkeypatch.setattr(grpc_client, "_GOODBYE_S", 0.0)
    patient = replace(options, exit_timeout_s=300)

    async def hang_up_early(server: TritonServer) -> None:
        async with AsyncGrpcClient(server.grpc_url.removeprefix("grpc://")) as client:

            async def one() -> None:
                async for _ in client.stream(SHORT):
                    pass

            await asyncio.gather(*(one() for _ in range(32)))

    began = time.monotonic()
    with TritonServer(patient) as server:
        run_dir = server.engine_socket.parent
        asyncio.run(hang_up_early(server))
    assert time.monotonic() - began < patient.exit_timeout_s
    assert_nothing_left(server, run_dir)


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_killed_server_ends_streams_and_is_noticed(server: TritonServer, scheme: str) -> None:
    url = server.grpc_url if scheme == "grpc" else server.http_url
    run_dir = server.engine_socket.parent
    client = connect(url)
    stream = client.stream(LONG)
    first = next(stream)
    os.kill(server.pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(StreamError, match="the server went away") as caught:
        list(stream)
    assert time.monotonic() - began < SECONDS
    assert caught.value.partial.text.startswith(first.text)
    with pytest.raises(ServerError, match="tritonserver died of SIGKILL"):
        server.watch(print)
    with pytest.raises(ServerError, match="no server answers there"):
        client.generate(SHORT)
    server.stop()
    assert_nothing_left(server, run_dir)


def test_a_killed_engine_host_ends_streams_and_comes_back(server: TritonServer) -> None:
    clients = [connect(server.grpc_url), connect(server.http_url)]
    streams = [client.stream(LONG) for client in clients]
    for stream in streams:
        next(stream)
    host = process_of(server, "fake_engine_host")
    os.kill(host, signal.SIGKILL)
    began = time.monotonic()
    for stream in streams:
        with pytest.raises(StreamError, match="the engine host went away"):
            list(stream)
    assert time.monotonic() - began < SECONDS
    for client in clients:  # both models find the new one
        assert client.generate(SHORT).text == "Hello world"
        assert [piece.text for piece in client.stream(SHORT)][-1] == "ld"
    assert process_of(server, "fake_engine_host") != host


def test_an_engine_host_that_keeps_dying_is_given_up(server: TritonServer, build: Path) -> None:
    (build / "engine" / "config.json").write_text("broken")
    os.kill(process_of(server, "fake_engine_host"), signal.SIGKILL)
    client = connect(server.grpc_url)
    began = time.monotonic()
    message = r"(?s)the engine host ended.*JSONDecodeError.*died 3 times .* is not started again"
    with pytest.raises(ServerError, match=message):
        client.generate(SHORT)
    with pytest.raises(ServerError, match=message):  # at once from now on
        list(client.stream(SHORT))
    assert time.monotonic() - began < 2 * SECONDS


@pytest.mark.parametrize("model", ["beam", "beam_sync"])
def test_a_killed_stub_is_noticed_and_its_model_comes_back(
    server: TritonServer, model: str
) -> None:
    assert server.dead_models() == []
    os.kill(process_of(server, f"{model}_0_0"), signal.SIGKILL)
    notes: list[str] = []

    def stop_after_reload() -> None:
        while len(notes) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop_after_reload, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        server.watch(notes.append)
    assert notes == [
        f"the stub of model {model} died; loading the model again.",
        f"model {model} is loaded again.",
    ]
    client = connect(server.grpc_url, idle_timeout_s=SECONDS)
    assert client.generate(SHORT).text == "Hello world"
    assert len(list(client.stream(SHORT))) == 5
    assert len([i for i in living(server.pid) if "fake_engine_host" in " ".join(i.command)]) == 1


def test_port_in_use_names_port_owner_and_flag(options: ServerOptions) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", options.grpc_port))
        taken.listen()
        server = TritonServer(options)
        with pytest.raises(ServerError) as caught:
            server.start()
        server.stop()
    message = str(caught.value)
    assert f"port {options.grpc_port} is in use by" in message
    assert f"(pid {os.getpid()})" in message
    assert "choose another port with --grpc-port" in message


def test_an_engine_that_is_not_there(options: ServerOptions, build: Path) -> None:
    shutil.rmtree(build / "engine")
    server = TritonServer(options)
    with pytest.raises(ServerError, match=r"engine: no such folder, but .* names it") as caught:
        server.__enter__()
    assert "Traceback" not in str(caught.value)
    assert "At:" not in str(caught.value)
    assert living(server.pid) == []


def test_an_engine_host_that_cannot_start(options: ServerOptions, build: Path) -> None:
    (build / "engine" / "config.json").write_text("broken")
    server = TritonServer(options)
    with pytest.raises(ServerError, match=r"(?s)the engine host ended with exit code 1.*JSONDec"):
        server.__enter__()
    assert living(server.pid) == []


def test_serve_command_until_sigterm(build: Path, options: ServerOptions) -> None:
    command = [
        *(str(Path(sys.executable).parent / "beam-trt"), "serve", str(build), "--json"),
        *("--http-port", str(options.http_port), "--grpc-port", str(options.grpc_port)),
        *("--metrics-port", str(options.metrics_port), "--exit-timeout", "2"),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        ready = json.loads(process.stdout.readline())
        assert ready["http"] == f"http://127.0.0.1:{options.http_port}"
        assert connect(ready["grpc"]).generate(SHORT).text == "Hello world"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert "stopping: open requests may take up to 2 s" in process.stderr.read()
        assert process.stdout.read() == ""
    assert living(ready["pid"]) == []
    assert not list(Path("/dev/shm").glob(f"beam_trt_{process.pid}_*"))
    check_port_free("127.0.0.1", options.http_port, "--http-port")


def test_a_second_signal_ends_a_slow_stop(build: Path, options: ServerOptions) -> None:
    command = [
        *(str(Path(sys.executable).parent / "beam-trt"), "serve", str(build), "--json"),
        *("--http-port", str(options.http_port), "--grpc-port", str(options.grpc_port)),
        *("--metrics-port", str(options.metrics_port), "--exit-timeout", "300"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        stream = connect(ready["grpc"]).stream(LONG)
        next(stream)
        threading.Timer(0.0, process.send_signal, (signal.SIGINT,)).start()
        threading.Timer(1.0, process.send_signal, (signal.SIGINT,)).start()
        assert process.wait(30) == 0
        with pytest.raises(StreamError):
            list(stream)
    assert living(ready["pid"]) == []
