"""Streams a plain checkpoint into a quantized one, group by group, layer by layer.

Peak memory: one group of matrices that share a scale and its quantized form; with calibration also
what `calibrate.Calibrator` holds.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from beam_trt.checkpoint import names
from beam_trt.checkpoint.index import CheckpointIndex
from beam_trt.checkpoint.names import Linear, LinearGroup, Site
from beam_trt.checkpoint.output import prepare_output, resumable_output
from beam_trt.checkpoint.precision import HF_QUANT_CONFIG
from beam_trt.checkpoint.reader import TORCH_DTYPES, CheckpointReader
from beam_trt.checkpoint.sidecars import TOKENIZER, copy_sidecars
from beam_trt.checkpoint.validate import validate
from beam_trt.checkpoint.write_behind import WriteBehind
from beam_trt.checkpoint.writer import DEFAULT_SHARD_BYTES, ShardWriter
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.config.tensors import TensorSpec
from beam_trt.errors import CheckpointError, ConfigError
from beam_trt.quantize import nvfp4_kernel, primitives
from beam_trt.quantize.calibrate import LayerCalibration
from beam_trt.quantize.journal import Journal
from beam_trt.quantize.metadata import hf_quant_config, quantization_config
from beam_trt.quantize.nvfp4_kernel import QuantizeBlocks
from beam_trt.quantize.primitives import Fp8Matrix, Nvfp4Matrix
from beam_trt.quantize.report import LayerReport, Report, bytes_by_part
from beam_trt.quantize.resume import Resumption, run_settings
from beam_trt.quantize.texts import DEFAULT_SAMPLES, tokenize

NVFP4_PARTS = ("weight", "weight_scale", "weight_scale_2", "input_scale")
FP8_PARTS = ("weight", "weight_scale")
"""Tensors that stand for one quantized linear."""

Samples = Sequence[str] | Sequence[Sequence[int]]
"""Calibration texts, or token ids already."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands: source bytes read and quantized so far, and tensors written."""

    layer_idx: int | None
    done_bytes: int
    total_bytes: int
    num_tensors: int
    total_tensors: int
    num_reused_shards: int = 0


ProgressFn = Callable[[Progress], None]


def run(
    source: Path,
    out: Path,
    quant: QuantConfig,
    calibration: Samples | None = None,
    num_samples: int = DEFAULT_SAMPLES,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    progress: ProgressFn | None = None,
) -> Report:
    """Quantize the checkpoint folder `source` into the new folder `out`, which appears complete or
    not at all. A run that was stopped, however, is continued by the same call: finished shards and
    calibrated layers are kept in a hidden folder beside `out`, and the bytes are those of a run
    that nobody disturbed.

    `calibration` is needed for NVFP4, whose activations have a static scale, and not used
    otherwise. Raises CheckpointError for a source that is no whole, unquantized Beam checkpoint,
    ConfigError for settings that do not fit it, OutputError where `out` cannot be written. Both
    also refuse to continue a run of another source or other settings.
    """
    started = time.monotonic()
    index = CheckpointIndex.open(source)
    _check_source(index, quant)
    validate(index)
    specs = list(output_tensors(index, quant))
    samples = _samples(index, quant, calibration, num_samples)
    prepare_output(out)
    with resumable_output(out) as folder, CheckpointReader(index) as reader:
        writer = ShardWriter(folder.result, specs, max_shard_bytes)
        settings = run_settings(index, quant, samples, max_shard_bytes, writer.num_shards)
        with Resumption(folder, settings) as resumption:
            writer.reuse(resumption.journal.shards)
            calibrated = resumption.calibrated(reader, samples) if samples else None
            recorder = _Recorder(resumption.journal)
            writer.on_shard = recorder.add_shard
            behind = WriteBehind(writer)
            job = _Job(reader, behind, quant, specs, progress, recorder)
            try:
                layers = job.convert(calibrated)
                behind.commit()
            finally:
                behind.abandon()
            sidecars = copy_sidecars(source, folder.result)
            _write_configs(index, quant, folder.result)
    notes = [*resumption.notes, *job.notes]
    if TOKENIZER not in sidecars:
        notes.append(f"{source} has no {TOKENIZER}: the result cannot be served until it has one.")
    return Report(
        precision=quant.precision.value,
        experts_only=quant.experts_only,
        bytes_before=bytes_by_part({n: info.nbytes for n, info in index.tensors.items()}),
        bytes_after=bytes_by_part({spec.name: spec.num_bytes for spec in specs}),
        relative_error=job.total_error.relative,
        layers=layers,
        num_samples=len(samples),
        num_calibration_tokens=sum(map(len, samples)),
        sidecars=sidecars,
        notes=notes,
        seconds=time.monotonic() - started,
    )


def output_tensors(index: CheckpointIndex, quant: QuantConfig) -> Iterator[TensorSpec]:
    """The tensors of the result, in writing order. Raises ConfigError where the format cannot hold
    the model."""
    for tensor in names.checkpoint_tensors(index.config, quant):
        yield TensorSpec(tensor.name, tensor.dtypes[0], tensor.shape)


@dataclass
class _Error:
    """Sums for a relative error in the Frobenius norm."""

    difference: float = 0.0
    weight: float = 0.0

    @classmethod
    def of(cls, weight: torch.Tensor, matrix: Nvfp4Matrix | Fp8Matrix) -> "_Error":
        error = cls()
        error.add(weight, matrix)
        return error

    def add(self, weight: torch.Tensor, matrix: Nvfp4Matrix | Fp8Matrix) -> None:
        for part in primitives.row_tiles(weight):
            values = weight[part].float().flatten()
            difference = matrix.rows(part).dequantize().flatten() - values
            self.difference += float(difference.dot(difference))
            self.weight += float(values.dot(values))

    def merge(self, other: "_Error") -> None:
        self.difference += other.difference
        self.weight += other.weight

    @property
    def relative(self) -> float | None:
        return (self.difference / self.weight) ** 0.5 if self.weight else None


class _Recorder:
    """Takes errors from the quantizing thread, and finished shards from the writing one, to the
    journal. `errors` holds the sums of all linears, also those of earlier runs."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.errors = dict(journal.errors)
        self._new: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def add_error(self, linear: str, sums: tuple[float, float]) -> None:
        with self._lock:
            self.errors[linear] = self._new[linear] = sums

    def add_shard(self, shard: Path) -> None:
        """Some errors may be of linears that still wait to be written: a rerun, which quantizes
        them again, finds the same sums."""
        with self._lock:
            new, self._new = self._new, {}
        self.journal.add_shard(shard, new)


@dataclass
class _Job:
    """One run's reading, quantizing and writing."""

    reader: CheckpointReader
    writer: WriteBehind
    quant: QuantConfig
    specs: Sequence[TensorSpec]
    progress: ProgressFn | None
    recorder: "_Recorder"
    total_error: _Error = field(default_factory=_Error)
    notes: list[str] = field(default_factory=list)
    done_bytes: int = 0
    num_tensors: int = 0

    def __post_init__(self) -> None:
        self.num_reused = len(self.recorder.journal.shards)
        self._kernel = self._choose_kernel()

    def convert(self, calibrated: Iterator[LayerCalibration] | None) -> list[LayerReport]:
        """Write every tensor that no earlier run finished; `calibrated` yields the layers in order,
        as they are needed."""
        config = self.reader.index.config
        dtypes = {spec.name: TORCH_DTYPES[spec.dtype] for spec in self.specs}
        self._report(None)
        self._copy(names.EMBED_TOKENS, dtypes)
        layers = []
        for layer_idx in range(config.num_hidden_layers):
            calibration = next(calibrated) if calibrated is not None else None
            for tensor in names.plain_layer_tensors(config, layer_idx):
                self._copy(tensor.name, dtypes)
            for group in names.linear_groups(config, layer_idx):
                precision = self.quant.linear_precision(group.site.is_expert)
                if precision is Precision.NVFP4:
                    assert calibration is not None, f"{layer_idx=} was not calibrated"
                    self._nvfp4(group, self._input_scale(group.site, calibration))
                elif precision is Precision.FP8:
                    self._fp8(group)
                else:
                    for linear in group.linears:
                        self._copy(linear.weight, dtypes)
                self._report(layer_idx)
            error = self._layer_error(layer_idx)
            self.total_error.merge(error)
            tokens = calibration.expert_tokens if calibration is not None else ()
            layers.append(LayerReport(layer_idx, error.relative, tokens))
        self._copy(names.FINAL_NORM, dtypes)
        self._copy(names.LM_HEAD, dtypes)
        self._report(None)
        return layers

    def _choose_kernel(self) -> QuantizeBlocks:
        """The NVFP4 kernel for this checkpoint's size; a note where it could be faster."""
        if self.quant.precision is not Precision.NVFP4:
            return nvfp4_kernel.quantize_blocks
        kernel = nvfp4_kernel.choose_kernel(self.reader.index.num_bytes)
        if kernel.note is not None:
            self.notes.append(kernel.note)
        return kernel.quantize_blocks

    def _layer_error(self, layer_idx: int) -> _Error:
        """The sum over the layer's quantized linears, in the same order whoever quantized them."""
        total = _Error()
        for group in names.linear_groups(self.reader.index.config, layer_idx):
            for linear in group.linears:
                total.merge(_Error(*self.recorder.errors.get(linear.name, (0.0, 0.0))))
        return total

    def _read(self, name: str) -> torch.Tensor:
        self.done_bytes += self.reader.index.require(name).nbytes
        return self.reader.tensor(name)

    def _write(self, name: str, tensor: torch.Tensor) -> None:
        if self.writer.needs(name):
            self.writer.write(name, tensor)
        self.num_tensors += 1

    def _is_done(self, sources: Sequence[str], results: Sequence[str]) -> bool:
        """Whether an earlier run finished all of `results`; then they and `sources` are counted."""
        if any(map(self.writer.needs, results)):
            return False
        self.done_bytes += sum(self.reader.index.require(name).nbytes for name in sources)
        self.num_tensors += len(results)
        return True

    def _is_group_done(self, group: LinearGroup, parts: Sequence[str]) -> bool:
        results = [f"{linear.name}.{part}" for linear in group.linears for part in parts]
        return self._is_done([linear.weight for linear in group.linears], results)

    def _add_error(
        self, linear: Linear, weight: torch.Tensor, matrix: Nvfp4Matrix | Fp8Matrix
    ) -> None:
        error = _Error.of(weight, matrix)
        self.recorder.add_error(linear.name, (error.difference, error.weight))

    def _copy(self, name: str, dtypes: dict[str, torch.dtype]) -> None:
        if not self._is_done([name], [name]):
            self._write(name, self._read(name).to(dtypes[name]))

    def _group_weights(self, group: LinearGroup) -> tuple[list[torch.Tensor], torch.Tensor]:
        """The group's matrices in bf16, and their largest magnitude."""
        weights = [self._read(linear.weight).to(torch.bfloat16) for linear in group.linears]
        largest = [primitives.amax([weight]) for weight in weights]
        for linear, found in zip(group.linears, largest, strict=True):
            if not found.isfinite():
                raise CheckpointError(
                    f"{self.reader.index.folder}: {linear.weight}: expected finite weights, found "
                    "NaN or infinity. The checkpoint is damaged: fetch it again."
                )
        return weights, torch.stack(largest).amax()

    def _nvfp4(self, group: LinearGroup, input_scale: torch.Tensor) -> None:
        if self._is_group_done(group, NVFP4_PARTS):
            return
        weights, largest = self._group_weights(group)
        scale_2 = primitives.nvfp4_scale(largest)
        for linear, weight in zip(group.linears, weights, strict=True):
            matrix = primitives.quantize_nvfp4(weight, scale_2, self._kernel)
            self._add_error(linear, weight, matrix)
            self._write(f"{linear.name}.weight", matrix.weight)
            self._write(f"{linear.name}.weight_scale", matrix.weight_scale)
            self._write(f"{linear.name}.weight_scale_2", matrix.weight_scale_2)
            self._write(f"{linear.name}.input_scale", input_scale)

    def _fp8(self, group: LinearGroup) -> None:
        if self._is_group_done(group, FP8_PARTS):
            return
        weights, _ = self._group_weights(group)
        for linear, weight in zip(group.linears, weights, strict=True):
            matrix = primitives.quantize_fp8(weight)
            self._add_error(linear, weight, matrix)
            self._write(f"{linear.name}.weight", matrix.weight)
            self._write(f"{linear.name}.weight_scale", matrix.weight_scale)

    def _input_scale(self, site: Site, calibration: LayerCalibration) -> torch.Tensor:
        largest = calibration.input_amax[site]
        note = (
            f"layer {calibration.layer_idx}: the input of {site} was all zeros during "
            "calibration; its input_scale is that of a largest value of 1."
        )
        if largest == 0 and note not in self.notes:
            self.notes.append(note)
        return primitives.nvfp4_scale(torch.tensor(largest))

    def _report(self, layer_idx: int | None) -> None:
        if self.progress is not None:
            total = self.reader.index.num_bytes
            self.progress(
                Progress(
                    layer_idx,
                    self.done_bytes,
                    total,
                    self.num_tensors,
                    len(self.specs),
                    self.num_reused,
                )
            )


def _check_source(index: CheckpointIndex, quant: QuantConfig) -> None:
    if quant.precision is Precision.FP32:
        raise ConfigError(
            "precision: a checkpoint is written as nvfp4, fp8 or bf16, found fp32. An fp32 "
            "checkpoint is used as it is."
        )
    if index.precision.is_quantized:
        raise CheckpointError(
            f"{index.folder}: expected an unquantized checkpoint, found one already quantized to "
            f"{index.precision}. Build an engine from it as it is (`beam-trt build`), or quantize "
            "the original BF16 checkpoint."
        )


def _samples(
    index: CheckpointIndex, quant: QuantConfig, calibration: Samples | None, num_samples: int
) -> list[list[int]]:
    if quant.precision is not Precision.NVFP4:
        return []
    if num_samples < 1:
        raise ConfigError(f"samples: expected at least 1 for nvfp4, found {num_samples}.")
    texts: list[str] = []
    samples: list[list[int]] = []
    for given in calibration or ():
        if isinstance(given, str):
            texts.append(given)
        elif given:
            samples.append(list(given))
    if texts:
        samples = tokenize(index.folder, texts, num_samples)
    samples = samples[:num_samples]
    if not samples:
        raise ConfigError(
            "calibration: nvfp4 needs text, because its activations have a static scale; found "
            "none. Give --calibration FILE with real text, or use fp8, which needs none."
        )
    for ids in samples:
        unknown = [i for i in ids if not 0 <= i < index.config.vocab_size]
        if unknown:
            raise CheckpointError(
                f"{index.folder}: the tokenizer gives token {unknown[0]}, expected ids below "
                f"vocab_size {index.config.vocab_size}. Check that the tokenizer belongs to it."
            )
    return samples


def _write_configs(index: CheckpointIndex, quant: QuantConfig, folder: Path) -> None:
    config = {k: v for k, v in index.raw_config.items() if k not in ("torch_dtype", "dtype")}
    config["dtype"] = "bfloat16"
    declared = quantization_config(index.config, quant)
    if declared is not None:
        config["quantization_config"] = declared
    if quant.precision is Precision.NVFP4:
        _write_json(folder / HF_QUANT_CONFIG, hf_quant_config(index.config, quant))
    _write_json(folder / "config.json", config)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
