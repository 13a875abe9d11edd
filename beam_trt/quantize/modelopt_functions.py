"""ModelOpt's own functions, imported once and quietly.

ModelOpt takes seconds to import and warns about torch features it still uses; nothing here runs
its model conversion, which would monkey-patch torch.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelOptFunctions:
    """The few functions that define the formats we write."""

    nvfp4: Any
    """NVFP4QTensor: get_weights_scaling_factor and quantize."""
    to_quantized_weight: Callable[..., Any]
    summarize_layers: Callable[[dict[str, Any]], dict[str, Any]]
    """Layer formats to the `quantization` part of hf_quant_config.json."""
    to_config_json: Callable[[dict[str, Any]], dict[str, Any]]
    """hf_quant_config.json to config.json's `quantization_config`."""
    version: str


@functools.cache
def modelopt_functions() -> ModelOptFunctions:
    """Import ModelOpt on first use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import modelopt
        from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format
        from modelopt.torch.export.quant_utils import (
            process_layer_quant_config,
            to_quantized_weight,
        )
        from modelopt.torch.quantization.qtensor import NVFP4QTensor
    return ModelOptFunctions(
        nvfp4=NVFP4QTensor,
        to_quantized_weight=to_quantized_weight,
        summarize_layers=process_layer_quant_config,
        to_config_json=convert_hf_quant_config_format,
        version=str(modelopt.__version__),
    )
