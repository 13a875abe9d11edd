"""`beam-trt model`: models that ship with the package."""

from pathlib import Path

import click

from beam_trt.cli.output import console, json_option, print_json


@click.group()
def model() -> None:
    """Models that ship with beam-trt."""


@model.command()
@click.option(
    "-o",
    "--output",
    "out_dir",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder to write; must be new or empty.",
)
@json_option
def tiny(out_dir: Path, as_json: bool) -> None:
    """Write beam-tiny, a small trained Beam, as an ordinary Hugging Face checkpoint."""
    from beam_trt.assets import beam_tiny

    written = beam_tiny.write(out_dir)
    if as_json:
        print_json(written)
    else:
        console.print(f"beam-tiny: {written['num_bytes'] / 1e6:.1f} MB in {written['path']}")
