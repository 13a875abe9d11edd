"""Exit codes: what every command shares."""

import click
from click.testing import CliRunner

from beam_trt.cli.main import BeamGroup
from beam_trt.errors import ConfigError


def group_that_raises(error: BaseException) -> BeamGroup:
    group = BeamGroup()

    @click.pass_context
    def fail(_: click.Context) -> None:
        raise error

    group.callback = fail
    group.invoke_without_command = True
    group.no_args_is_help = False
    return group


def test_an_error_is_its_message_and_exit_code_one() -> None:
    result = CliRunner().invoke(group_that_raises(ConfigError("mapping: too many ranks.")), [])
    assert result.exit_code == 1
    assert result.output == "Error: mapping: too many ranks.\n"


def test_an_interrupt_is_exit_code_130() -> None:
    result = CliRunner().invoke(group_that_raises(KeyboardInterrupt()), [])
    assert result.exit_code == 130
    assert "Traceback" not in result.output


def test_wrong_usage_is_exit_code_two() -> None:
    from beam_trt.cli.main import main

    result = CliRunner().invoke(main, ["quantise", "x"])
    assert result.exit_code == 2
    assert "No such command 'quantise'" in result.output


def test_a_bug_is_not_hidden() -> None:
    result = CliRunner().invoke(group_that_raises(ZeroDivisionError("ours")), [])
    assert isinstance(result.exception, ZeroDivisionError)
