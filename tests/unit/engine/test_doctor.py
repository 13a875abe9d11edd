"""The doctor reports; it never fails, whatever is broken."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from beam_trt.doctor import Status, find_gpus


def run_doctor(folder: Path, torch_source: str) -> dict[str, Any]:
    """`beam-trt doctor --json` in a process whose torch is `torch_source`."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(torch_source, encoding="utf-8")
    code = "from beam_trt.cli.main import main; main(['doctor', '--json'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def by_name(findings: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for finding in findings}


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    source = "raise ImportError('libcudart.so.13 is gone')"
    return run_doctor(tmp_path_factory.mktemp("broken"), source)


def test_a_broken_torch_is_a_finding(without_torch: dict[str, Any]) -> None:
    torch = by_name(without_torch["checks"])["torch"]
    assert torch["status"] == "warn"
    assert "import fails: ImportError: libcudart.so.13 is gone" in torch["found"]
    native = by_name(without_torch["abilities"])[
        "native engines on the CPU: build, verify, generate"
    ]
    assert not native["possible"]
    assert "torch" in native["reason"]


def test_a_torch_that_kills_its_process_is_a_finding(tmp_path: Path) -> None:
    answer = run_doctor(tmp_path, "import os; os.abort()")
    torch = by_name(answer["checks"])["torch"]
    assert torch["status"] == "warn"
    assert "import fails: exit code -6" in torch["found"]


def test_everything_is_looked_at_and_missing_runtimes_are_explained(
    without_torch: dict[str, Any],
) -> None:
    checks = by_name(without_torch["checks"])
    wanted = {"machine", "memory", "disk", "/dev/shm", "torch", "transformers", "tritonserver"}
    wanted |= {"nvidia-modelopt", "tensorrt", "tensorrt-llm"}
    assert wanted <= checks.keys()
    for name in ("tensorrt", "tensorrt-llm"):
        if checks[name]["status"] == "absent":
            assert checks[name]["found"] == "not installed"
            assert f"--runtime {name}" in checks[name]["meaning"]
            assert "NVIDIA's own package index" in checks[name]["meaning"]


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for nvidia-smi, first in PATH."""
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    tool.touch(0o755)
    return tool


def test_gpus_are_named_as_the_table_names_them(nvidia_smi: Path) -> None:
    nvidia_smi.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 9.0, 570.86.15'\n")
    (gpu,) = find_gpus()
    assert gpu.found == "NVIDIA H200, 151 GB, sm_90, driver 570.86.15"
    assert "--gpu h100 or h200" in gpu.meaning


def test_a_driver_without_gpus_is_a_finding(nvidia_smi: Path) -> None:
    nvidia_smi.write_text("#!/bin/sh\necho 'no devices were found'; exit 9\n")
    (gpu,) = find_gpus()
    assert gpu.status is Status.WARN
    assert "no devices were found" in gpu.found
