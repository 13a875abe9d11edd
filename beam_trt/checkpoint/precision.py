"""Which quantization a checkpoint says it has: `quantization_config` in config.json, or
hf_quant_config.json. Knows nothing about tensor values."""

import json
from pathlib import Path
from typing import Any

from beam_trt.checkpoint import names
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.errors import CheckpointError

HF_QUANT_CONFIG = "hf_quant_config.json"


def read_quant(
    folder: Path, raw_config: dict[str, Any], config: ModelConfig, dtypes: dict[str, str]
) -> QuantConfig:
    """What config.json (or, in older exports, hf_quant_config.json alone) declares.

    `dtypes` maps tensor names to safetensors dtypes: it tells whether attention is quantized too.
    Raises CheckpointError for a format beam-trt does not read, and for a folder whose tensors are
    quantized without saying how.
    """
    declared = raw_config.get("quantization_config")
    if declared is None and (folder / HF_QUANT_CONFIG).exists():
        declared = _read_sidecar(folder / HF_QUANT_CONFIG)
    attention = dtypes.get(f"{names.o_proj(0)}.weight")
    if declared is None:
        quantized = next((n for n, d in dtypes.items() if d in ("U8", "F8_E4M3")), None)
        if quantized is not None:
            raise CheckpointError(
                f"{folder}: {quantized} is {dtypes[quantized]}, but neither config.json nor "
                f"{HF_QUANT_CONFIG} says how the checkpoint is quantized. Fetch these files again."
            )
        return QuantConfig(Precision.FP32 if config.dtype == "float32" else Precision.BF16)
    return QuantConfig(_precision(folder, declared), experts_only=attention in names.PLAIN_DTYPES)


def _precision(folder: Path, declared: Any) -> Precision:
    method = declared.get("quant_method") if isinstance(declared, dict) else None
    found = f"quantization method {method!r}"
    if method == "modelopt":
        algorithm = declared.get("quant_algo")
        if algorithm == "NVFP4":
            return Precision.NVFP4
        found = f"ModelOpt with quant_algo {algorithm!r}"
    elif method == "compressed-tensors":
        layout = declared.get("format")
        if layout == "float-quantized":
            return Precision.FP8
        found = f"compressed-tensors with format {layout!r}"
    raise CheckpointError(
        f"{folder}: expected ModelOpt NVFP4, compressed-tensors float-quantized FP8 or no "
        f"quantization, found {found}. Start from the BF16 checkpoint and run `beam-trt quantize`."
    )


def _read_sidecar(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        algorithm = raw["quantization"]["quant_algo"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path}: expected ModelOpt's quantization.quant_algo, found {error!r}. "
            "Fetch the file again."
        ) from error
    return {"quant_method": "modelopt", "quant_algo": algorithm}
