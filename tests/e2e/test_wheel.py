"""The wheel carries everything the commands need, and works from another folder."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from a copy of the tracked files, as a release would be."""
    source = tmp_path_factory.mktemp("source")
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", out, source],
        check=True, capture_output=True,
    )  # fmt: skip
    (built,) = out.glob("*.whl")
    return built


def test_wheel_contents(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"beam_trt", "beam_trt_plugins"}
    for folder, package, ends in (
        ("build_configs", "beam_trt/build_configs", ".yaml"),
        ("triton_repo", "beam_trt/triton_repo", ""),
        ("plugins", "beam_trt_plugins", ".py"),
        ("beam_trt/assets", "beam_trt/assets", ""),
    ):
        files = [p for p in (ROOT / folder).rglob("*") if p.is_file() and p.suffix != ".pyc"]
        wanted = [p for p in files if p.name.endswith(ends) and p.name != ".gitignore"]
        assert wanted, folder
        for path in wanted:
            assert f"{package}/{path.relative_to(ROOT / folder)}" in names


def test_wheel_works_in_an_empty_venv(wheel: Path, tmp_path: Path) -> None:
    """Only click, rich and pyyaml are there: help and the bundled model must not need more."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", wheel], check=True
    )  # fmt: skip
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "click", "rich", "pyyaml"],
        check=True, capture_output=True,
    )  # fmt: skip
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = tmp_path / "venv/bin/beam-trt"
    helped = subprocess.run(
        [command, "--help"], cwd=elsewhere, check=True, capture_output=True, text=True
    )
    assert "quantize" in helped.stdout
    subprocess.run([command, "model", "tiny", "-o", "tiny"], cwd=elsewhere, check=True)
    written = {p.name for p in (elsewhere / "tiny").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= written
