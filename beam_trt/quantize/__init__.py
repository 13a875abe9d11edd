"""Turns a Beam checkpoint into a quantized checkpoint that others can load too.

`run` is the whole stage; it imports torch, transformers and ModelOpt when it is called.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from beam_trt.config.quant import QuantConfig

if TYPE_CHECKING:
    from beam_trt.quantize.report import Report
    from beam_trt.quantize.stream import Progress


def run(
    source: Path,
    out: Path,
    quant: QuantConfig,
    calibration: Sequence[str] | Sequence[Sequence[int]] | None = None,
    num_samples: int = 128,
    max_shard_bytes: int = 5_000_000_000,
    progress: "Callable[[Progress], None] | None" = None,
) -> "Report":
    """Quantize the checkpoint folder `source` into the new folder `out`; see `stream.run`."""
    from beam_trt.quantize import stream

    return stream.run(source, out, quant, calibration, num_samples, max_shard_bytes, progress)


def kept(out: Path) -> str:
    """A sentence on what a stopped run into `out` has kept and how to continue it; empty when there
    is nothing to continue. Needs no torch."""
    from beam_trt.checkpoint.output import partial_folder
    from beam_trt.quantize.journal import kept_sentence

    return kept_sentence(partial_folder(out))
