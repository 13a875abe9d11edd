"""Writing a repository, and what the launcher knows of ports, processes and the installation."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_tokenizer import tiny_tokenizer

from beam_trt.config.build import BuildConfig
from beam_trt.config.mapping import Mapping
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.engine.manifest import EngineConfig
from beam_trt.errors import EngineError, OutputError, ServerError
from beam_trt.triton import installation as installation_module
from beam_trt.triton.installation import Installation
from beam_trt.triton.ports import check_port_free, port_owner
from beam_trt.triton.processes import kill_session, session_members
from beam_trt.triton.repository import write_repository
from beam_trt.triton.server import ServerOptions, find_repository


@pytest.fixture
def engine_dir(tmp_path: Path) -> Path:
    import json

    engine = tmp_path / "out" / "engine"
    engine.mkdir(parents=True)
    (engine / "tokenizer").symlink_to(tiny_tokenizer().folder)
    config = EngineConfig(
        engine,
        ModelConfig.from_folder(tiny_tokenizer().folder),
        QuantConfig(Precision.BF16),
        Mapping(),
        BuildConfig(max_seq_len=64),
    )
    (engine / "config.json").write_text(json.dumps(config.to_dict()))
    return engine


def test_the_repository_names_its_engine_by_relative_path(engine_dir: Path) -> None:
    inside = write_repository(engine_dir, engine_dir.parent / "triton_repo")
    assert inside["engine"] == "../engine"
    elsewhere = write_repository(engine_dir, engine_dir.parents[1] / 'odd "name"' / "repo")
    assert elsewhere["engine"] == "../../out/engine"
    for written in (inside, elsewhere):
        folder = Path(written["path"])
        assert find_repository(folder) == folder.resolve()
        for model in written["models"]:
            compile((folder / model / "1" / "model.py").read_text(), "model.py", "exec")
    assert find_repository(engine_dir.parent) == (engine_dir.parent / "triton_repo").resolve()


def test_the_written_config_is_what_triton_reads(engine_dir: Path) -> None:
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    out = engine_dir.parent / "triton_repo"
    for model in write_repository(engine_dir, out)["models"]:
        text = (out / model / "config.pbtxt").read_text()
        parsed = text_format.Parse(text, model_config_pb2.ModelConfig())
        assert parsed.name == model
        assert parsed.parameters["engine"].string_value == "../engine"
        assert parsed.model_transaction_policy.decoupled is (model == "beam")
        assert all(one.optional for one in parsed.input)


def test_repository_refusals(engine_dir: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    with pytest.raises(OutputError, match="expected an empty or new folder"):
        write_repository(engine_dir, full)
    with pytest.raises(EngineError, match="not an engine"):
        write_repository(full, tmp_path / "repo")
    (engine_dir / "tokenizer").unlink()
    with pytest.raises(EngineError, match="expected the tokenizer that serving needs"):
        write_repository(engine_dir, tmp_path / "repo")
    assert not (tmp_path / "repo").exists()
    with pytest.raises(ServerError, match=r"expected a build .* found neither"):
        find_repository(full)
    with pytest.raises(ServerError, match="no such folder"):
        find_repository(tmp_path / "nowhere")


def test_a_taken_port_is_refused_with_its_owner() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        taken.listen()
        owner = port_owner(port)
        assert owner is not None
        assert f"(pid {os.getpid()})" in owner
        with pytest.raises(ServerError, match=rf"port {port} is in use by .* with --http-port"):
            check_port_free("127.0.0.1", port, "--http-port")
    check_port_free("127.0.0.1", port, "--http-port")
    assert port_owner(port) is None


def test_an_address_of_no_interface_is_refused() -> None:
    with pytest.raises(ServerError, match=r"192\.0\.2\.1:8000: cannot listen there.*--host"):
        check_port_free("192.0.2.1", 8000, "--http-port")


def test_a_session_dies_with_the_children_that_ignore_sigterm() -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.fork()\nprint('up', flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(2)]
        members = session_members(process.pid)
        process.send_signal(signal.SIGTERM)
        killed = kill_session(process.pid)
        # Checked only now: leaving the block would wait for a process that is not killed.
        assert process.wait() == -signal.SIGKILL
        assert said == [b"up\n"] * 2
        assert len(members) == 2
        assert killed == sorted(info.pid for info in members)
    assert [info for info in session_members(process.pid) if info.is_alive] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"http_port": 0}, r"--http-port: expected a port within 1\.\.65535, got 0"),
        ({"grpc_port": 8000}, r"expected three different ones"),
        ({"exit_timeout_s": -1}, r"--exit-timeout: expected at least 0 seconds, got -1"),
    ],
)
def test_bad_options(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ServerError, match=message):
        ServerOptions(Path("repo"), **changes)  # type: ignore[arg-type]


def test_installation_is_found_and_puts_this_python_first() -> None:
    found = Installation.find()
    assert os.access(found.server, os.X_OK)
    environment = found.environment()
    assert environment["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert list(found.library_dir.glob("libpython3.*.so*"))


def test_missing_libpython_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation_module, "_LIBRARY", "libpython3.11.so.99")
    version = installation_module.PYTHON_VERSION
    with pytest.raises(ServerError, match=rf"apt-get install libpython{version}$"):
        Installation.find()


def test_missing_pytriton_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ServerError, match=r"pip install nvidia-pytriton==0\.7\.0"):
        Installation.find()
