"""The command line: parses nothing itself, finds each command in its own module when it is used."""

import importlib
import importlib.util
from typing import Any

import click

from beam_trt import __version__
from beam_trt.errors import BeamTrtError

COMMANDS = {
    "bench": "Measure: tables, JSON and plots.",
    "build": "Quantize if needed, build the engine and its Triton repository.",
    "chat": "Chat in the terminal, with reasoning, tools and effort.",
    "doctor": "Say what this machine has and what that allows.",
    "generate": "Answer one prompt, through a server or in process.",
    "inspect": "Say what a checkpoint or an engine holds.",
    "model": "Models that ship with beam-trt.",
    "plan": "Say what fits a GPU and what it would cost.",
    "quantize": "Turn a Beam checkpoint into NVFP4, FP8 or BF16.",
    "repo": "Write the Triton model repository of an engine.",
    "serve": "Start, watch and cleanly stop Triton on a build.",
    "verify": "Check integrity, and numbers against transformers.",
}
"""Every command there can be, with its line in `--help`; those whose module exists are offered."""


INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells expect it: 128 + SIGINT. Commands say where they stand."""


class BeamGroup(click.Group):
    """Imports a command's module on first use and maps errors to exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if importlib.util.find_spec(_module(name))]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        command = getattr(importlib.import_module(_module(name)), name)
        assert isinstance(command, click.Command), name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BeamTrtError as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None


def _module(command: str) -> str:
    return f"beam_trt.cli.{command}"


@click.group(cls=BeamGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="beam-trt")
def main() -> None:
    """From a Beam checkpoint to a production endpoint on NVIDIA GPUs.

    \b
    The stages meet on disk, each command reads what the one before it wrote:
      beam-trt model tiny -o tiny            a small trained Beam, to try everything on
      beam-trt build tiny --precision nvfp4 --tp 4 -o out
      beam-trt serve out
      beam-trt generate "Hello" --url grpc://127.0.0.1:8001

    Every command takes --json for scripts. Exit codes: 0 done, 1 an error with one clear
    message, 2 wrong usage.
    """
