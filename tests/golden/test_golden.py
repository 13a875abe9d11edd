"""What others read, compared as text; `make golden` rewrites the files and the diff is reviewed."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from beam_trt.cli.main import COMMANDS, _module, main

HERE = Path(__file__).parent


def check(name: str, text: str, request: pytest.FixtureRequest) -> None:
    path = HERE / name
    if request.config.getoption("--rewrite-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path.name} is missing: run `make golden` and review it"
    assert text == path.read_text(encoding="utf-8"), f"{name} changed: `make golden`, then review"


def present_commands() -> list[str]:
    import importlib.util

    return [name for name in COMMANDS if importlib.util.find_spec(_module(name))]


def help_text(*args: str) -> str:
    result = CliRunner().invoke(main, [*args, "--help"], prog_name="beam-trt", terminal_width=100)
    assert result.exit_code == 0, result.output
    return result.output


def test_top_help(request: pytest.FixtureRequest) -> None:
    check("help/beam-trt.txt", help_text(), request)


@pytest.mark.parametrize("command", present_commands())
def test_command_help(command: str, request: pytest.FixtureRequest) -> None:
    check(f"help/{command}.txt", help_text(command), request)


@pytest.mark.parametrize("command", ["", *present_commands()])
def test_help_needs_no_heavy_import(command: str) -> None:
    code = (
        "import sys\n"
        "from beam_trt.cli.main import main\n"
        f"args = {[command, '--help'] if command else ['--help']!r}\n"
        "main(args, standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'modelopt', 'tritonclient'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
