"""What lets a stopped run be continued: its settings, its journal and the calibration's state.

The hidden folder holds the journal, `result/` with the finished shards, and the hidden states after
the last calibrated layer. Knows nothing about quantized formats.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from beam_trt import __version__
from beam_trt.checkpoint.fingerprint import fingerprints
from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.checkpoint.names import Site
from beam_trt.checkpoint.output import ResumableFolder
from beam_trt.checkpoint.reader import CheckpointReader
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.errors import BeamTrtError
from beam_trt.quantize.calibrate import Calibrator, LayerCalibration
from beam_trt.quantize.journal import JOURNAL_FILE, SOURCE, Journal, file_sha256, kept_sentence
from beam_trt.quantize.modelopt_functions import modelopt_functions


def run_settings(
    index: CheckpointIndex,
    quant: QuantConfig,
    samples: Sequence[Sequence[int]],
    max_shard_bytes: int,
    num_shards: int,
) -> dict[str, Any]:
    """Everything that decides the bytes of a run, as JSON values; keys are words for messages.

    `samples` are token ids, so the tokenizer counts too.
    """
    settings: dict[str, Any] = {
        SOURCE: {"config and tensor headers": index.identity(), **fingerprints(index)},
        "beam-trt version": __version__,
        "torch version": torch.__version__,
        "precision": quant.precision.value,
        "experts_only": quant.experts_only,
        "max_shard_bytes": max_shard_bytes,
        "num_shards": num_shards,
    }
    if quant.precision is not Precision.BF16:
        settings["modelopt version"] = modelopt_functions().version
    if samples:
        digest = hashlib.sha256(json.dumps([list(ids) for ids in samples]).encode())
        settings["calibration samples"] = len(samples)
        settings["calibration tokens"] = sum(map(len, samples))
        settings["calibration token ids"] = f"sha256 {digest.hexdigest()[:12]}"
    return settings


class Resumption:
    """The state of one run in its hidden folder. On an error it removes what a rerun could not use,
    and adds to the message what it kept."""

    def __init__(self, folder: ResumableFolder, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        self.notes: list[str] = []
        self.journal = Journal(folder.work, settings)

    def __enter__(self) -> "Resumption":
        for file in self.journal.drop_damaged(self._folder.result):
            self.notes.append(f"{file} of the interrupted run was damaged and made anew.")
        self._tidy()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.journal.close()
        if error is None:
            return
        self._tidy()
        if self.journal.is_empty:
            self.journal.path.unlink(missing_ok=True)
        self._folder.kept = kept_sentence(self._folder.work)
        if isinstance(error, BeamTrtError) and self._folder.kept:
            raise type(error)(f"{error} {self._folder.kept}") from error

    def calibrated(
        self, reader: CheckpointReader, samples: Sequence[Sequence[int]]
    ) -> Iterator[LayerCalibration]:
        """Every layer's calibration, those of earlier runs first. Each new one is recorded, with
        the hidden states it left, before it is used."""
        num_layers = reader.index.config.num_hidden_layers
        done = len(self.journal.layers)
        states = None
        if 0 < done < num_layers:
            hidden_size = reader.index.config.hidden_size
            states = self._load_states([(len(ids), hidden_size) for ids in samples])
            if states is None:
                self.journal.forget_layers()
                self.notes.append("calibration started over: its saved activations were damaged.")
                done = 0
        yield from map(_from_line, self.journal.layers)
        if done == num_layers:
            return
        calibrator = Calibrator(reader, samples, done, states)
        for calibration in calibrator.layers():
            is_last = calibration.layer_idx == num_layers - 1
            digest = None if is_last else self._save_states(calibration.layer_idx, calibrator)
            self.journal.add_layer(_to_line(calibration, digest))
            self._remove_old_states()
            yield calibration

    def _states_file(self, layer_idx: int) -> Path:
        return self._folder.work / f"activations-{layer_idx:05d}.bin"

    def _save_states(self, layer_idx: int, calibrator: Calibrator) -> str:
        """Write the hidden states to disk; their sha256. Named by layer, so that those of the layer
        before stay until the journal names these."""
        digest = hashlib.sha256()
        with self._states_file(layer_idx).open("wb") as file:
            for state in calibrator.hidden_states:
                data = state.contiguous().view(torch.uint8).numpy().data
                digest.update(data)
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return digest.hexdigest()

    def _load_states(self, shapes: Sequence[tuple[int, int]]) -> list[torch.Tensor] | None:
        """Hidden states after the last recorded layer, or None where they are not as recorded."""
        line = self.journal.layers[-1]
        path = self._states_file(line["layer_idx"])
        if not path.is_file() or file_sha256(path) != line["activations_sha256"]:
            return None
        data = torch.from_file(
            str(path), dtype=torch.bfloat16, size=sum(rows * columns for rows, columns in shapes)
        )
        parts = data.split([rows * columns for rows, columns in shapes])
        # Copies, because the file is removed while they are in use.
        return [part.clone().view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def _remove_old_states(self) -> None:
        last = self.journal.layers[-1]["layer_idx"] if self.journal.layers else None
        for path in self._folder.work.glob("activations-*.bin"):
            if last is None or path != self._states_file(last):
                path.unlink()

    def _tidy(self) -> None:
        """Remove unfinished shards, and whatever else the journal does not know."""
        for path in self._folder.result.iterdir():
            if path.name not in self.journal.shards:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._remove_old_states()
        known = (JOURNAL_FILE, self._folder.result.name)
        for path in self._folder.work.iterdir():
            if path.name not in known and not path.name.startswith("activations-"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _to_line(calibration: LayerCalibration, digest: str | None) -> dict[str, Any]:
    return {
        "layer_idx": calibration.layer_idx,
        "input_amax": {site.value: value for site, value in calibration.input_amax.items()},
        "expert_tokens": list(calibration.expert_tokens),
        "activations_sha256": digest,
    }


def _from_line(line: dict[str, Any]) -> LayerCalibration:
    maxima = {Site(site): float(value) for site, value in line["input_amax"].items()}
    return LayerCalibration(line["layer_idx"], maxima, tuple(line["expert_tokens"]))
