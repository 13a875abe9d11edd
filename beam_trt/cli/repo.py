"""`beam-trt repo`: the Triton repository alone."""

from pathlib import Path

import click

from beam_trt.cli.output import console, json_option, print_json


@click.command()
@click.argument("engine", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "out_dir",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder to write; must be new or empty.",
)
@json_option
def repo(engine: Path, out_dir: Path, as_json: bool) -> None:
    """Write the Triton model repository of ENGINE, a folder that `beam-trt build` wrote.

    The repository names the engine by its path relative to the repository: move both together.
    """
    from beam_trt.triton.repository import write_repository

    written = write_repository(engine, out_dir)
    if as_json:
        print_json(written)
    else:
        models = ", ".join(written["models"])
        console.print(f"{written['path']}: models {models}, engine {written['engine']}")
