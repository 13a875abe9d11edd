"""The engine host as a process: starts, serves, stops, and is killed."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from runtime_engines import Engines, random_prompt

from beam_trt.errors import ServerError
from beam_trt.runtime.host_client import EngineClient
from beam_trt.runtime.request import Request, RequestOutput, SamplingParams

WAIT_S = 60.0


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Engines:
    return Engines(tmp_path_factory.mktemp("engines"))


class Sink:
    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.last: RequestOutput | None = None
        self.started = threading.Event()
        self.ended = threading.Event()

    def __call__(self, output: RequestOutput) -> None:
        self.token_ids += output.token_ids
        self.started.set()
        if output.is_last:
            self.last = output
            self.ended.set()

    def wait(self) -> RequestOutput:
        assert self.ended.wait(WAIT_S)
        assert self.last is not None
        return self.last


def command(engine: Path, path: Path, *options: str) -> list[str]:
    arguments = [str(engine), "--socket", str(path), "--kv-cache-bytes", str(32 * 2**20), *options]
    return [sys.executable, "-m", "beam_trt.runtime.host", *arguments]


@contextmanager
def hosted(
    engine: Path, path: Path, *options: str
) -> Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]:
    """A ready host, killed at the end if it still runs."""
    with subprocess.Popen(command(engine, path, *options), stdout=subprocess.PIPE) as host:
        try:
            assert host.stdout is not None
            ready = json.loads(host.stdout.readline())
            assert ready == {"ready": True, "socket": str(path), "pid": host.pid}
            yield host, psutil.Process(host.pid)
        finally:
            host.kill()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def are_gone(processes: list[psutil.Process]) -> bool:
    return not any(
        process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes
    )


def endless(request_id: str) -> Request:
    return Request(request_id, random_prompt(3), SamplingParams(max_tokens=300, ignore_eos=True))


def test_two_clients_get_transformers_tokens_and_sigterm_leaves_nothing(
    engines: Engines, tmp_path: Path
) -> None:
    path = tmp_path / "engine.sock"
    with hosted(engines.folder(2), path) as (host, process):
        ranks = process.children(recursive=True)
        assert len(ranks) == 1
        with EngineClient(path) as one, EngineClient(path) as two:
            sinks = [(client, length, Sink()) for length in (2, 30) for client in (one, two)]
            for client, length, sink in sinks:
                sampling = SamplingParams(max_tokens=20, ignore_eos=True)
                client.submit(Request(f"r{length}", random_prompt(length), sampling), sink)
            for _, length, sink in sinks:
                sink.wait()
                assert sink.token_ids == engines.greedy(random_prompt(length), 20)[0]
            cut = Sink()
            two.submit(endless("cut"), cut)
            assert cut.started.wait(WAIT_S)
            two.close()
            wait_until(lambda: one.stats()["num_running"] == 0, "a lost client's request runs on")
            assert one.stats()["full_blocks_used"] == 0
            running = Sink()
            one.submit(endless("running"), running)
            assert running.started.wait(WAIT_S)
            host.send_signal(signal.SIGTERM)
            assert running.wait().finish_reason == "cancelled"
            assert host.wait(WAIT_S) == 0
        assert not path.exists()
        assert are_gone(ranks)


def test_sigterm_drains_for_as_long_as_asked(engines: Engines, tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with (
        hosted(engines.folder(1), path, "--drain-seconds", "60") as (host, _),
        EngineClient(path) as client,
    ):
        sink = Sink()
        sampling = SamplingParams(max_tokens=60, ignore_eos=True)
        client.submit(Request("a", random_prompt(4), sampling), sink)
        assert sink.started.wait(WAIT_S)
        host.send_signal(signal.SIGTERM)
        assert sink.wait().finish_reason == "length"
        assert host.wait(WAIT_S) == 0


def test_a_killed_host_answers_its_clients_with_errors(engines: Engines, tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with hosted(engines.folder(2), path) as (host, process):
        ranks = process.children(recursive=True)
        client = EngineClient(path)
        sinks = [Sink() for _ in range(3)]
        for number, sink in enumerate(sinks):
            client.submit(endless(f"r{number}"), sink)
        assert sinks[0].started.wait(WAIT_S)
        host.kill()
        for sink in sinks:
            last = sink.wait()
            assert last.finish_reason == "error"
            assert "the engine host went away" in str(last.error)
        with pytest.raises(ServerError, match="went away"):
            client.ping()
        client.close()
    wait_until(lambda: are_gone(ranks), "a rank outlived its host")
    # The socket file of the dead host is in nobody's way.
    with hosted(engines.folder(1), path), EngineClient(path) as client:
        assert client.ping()["healthy"]


def test_a_lost_rank_ends_the_host_with_an_error(engines: Engines, tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with hosted(engines.folder(2), path) as (host, process), EngineClient(path) as client:
        sink = Sink()
        client.submit(endless("a"), sink)
        assert sink.started.wait(WAIT_S)
        process.children()[0].kill()
        assert "was ended by SIGKILL" in str(sink.wait().error)
        assert host.wait(WAIT_S) == 1
        assert not path.exists()


PARENT = """
import subprocess, sys
host = subprocess.Popen(sys.argv[1:], stdout=sys.stdout)
print(host.pid, flush=True)
host.wait()
"""


def test_a_host_can_die_with_its_parent(engines: Engines, tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    arguments = command(engines.folder(2), path, "--die-with-parent")
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, *arguments], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        host = psutil.Process(int(parent.stdout.readline()))
        assert json.loads(parent.stdout.readline())["ready"]
        processes = [host, *host.children()]
        assert len(processes) == 2
        parent.kill()
        wait_until(lambda: are_gone(processes), "the host outlived its parent")
    assert not path.exists()


@pytest.mark.parametrize("num_ranks", [None, 3])
def test_what_cannot_start_says_so(engines: Engines, tmp_path: Path, num_ranks: int | None) -> None:
    engine = tmp_path if num_ranks is None else engines.folder(2)
    options = () if num_ranks is None else ("--num-ranks", str(num_ranks))
    done = subprocess.run(
        command(engine, tmp_path / "engine.sock", *options), capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stdout == ""
    wanted = "not an engine" if num_ranks is None else "built for tp_size 2, started with 3 ranks"
    assert wanted in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "engine.sock").exists()
