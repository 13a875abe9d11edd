"""What a quantized checkpoint says about itself: `quantization_config` and hf_quant_config.json.

NVFP4 exactly as ModelOpt writes it, FP8 as compressed-tensors reads it. Knows no tensor values.
"""

from typing import Any

from beam_trt.checkpoint import names
from beam_trt.config.model import ModelConfig
from beam_trt.config.quant import Precision, QuantConfig
from beam_trt.quantize.modelopt_functions import modelopt_functions

_LM_HEAD, _EMBED_TOKENS = "lm_head", "model.embed_tokens"


def hf_quant_config(config: ModelConfig, quant: QuantConfig) -> dict[str, Any]:
    """ModelOpt's hf_quant_config.json of an NVFP4 checkpoint.

    ModelOpt's own summary makes the exclude patterns, from the whole model's layers, so that no
    pattern matches a quantized layer.
    """
    modelopt = modelopt_functions()
    layers: dict[str, Any] = {f"{_EMBED_TOKENS}.quantization": None}
    for layer_idx in range(config.num_hidden_layers):
        for group in names.linear_groups(config, layer_idx):
            for linear in group.linears:
                _add_linear(layers, linear, group.site.is_expert, quant)
    layers[f"{_LM_HEAD}.quantization"] = None
    for layer_idx in range(config.num_hidden_layers):
        if config.is_moe(layer_idx):
            layers[f"{names.router(layer_idx)}.quantization"] = None
    return {
        "producer": {"name": "modelopt", "version": modelopt.version},
        "quantization": {
            "quant_algo": None,
            "kv_cache_quant_algo": None,
            **modelopt.summarize_layers(layers),
        },
    }


def quantization_config(config: ModelConfig, quant: QuantConfig) -> dict[str, Any] | None:
    """The `quantization_config` of config.json, or None when nothing is quantized."""
    if quant.precision is Precision.NVFP4:
        return modelopt_functions().to_config_json(hf_quant_config(config, quant))
    if quant.precision is Precision.FP8:
        return _compressed_tensors(config, quant)
    return None


def ignored_linears(config: ModelConfig, quant: QuantConfig) -> list[str]:
    """Module names that stay unquantized, each spelled out: lm_head, routers and, when only experts
    are quantized, every other linear. A pattern could match a layer it does not mean."""
    ignored = [_LM_HEAD]
    for layer_idx in range(config.num_hidden_layers):
        if config.is_moe(layer_idx):
            ignored.append(names.router(layer_idx))
        for group in names.linear_groups(config, layer_idx):
            if not quant.linear_precision(group.site.is_expert).is_quantized:
                ignored += [linear.name for linear in group.linears]
    return ignored


def _add_linear(
    layers: dict[str, Any], linear: names.Linear, is_expert: bool, quant: QuantConfig
) -> None:
    # ModelOpt sees all experts of a layer as one module.
    name = linear.name.split(".experts.")[0] + ".experts" if is_expert else linear.name
    is_quantized = quant.linear_precision(is_expert).is_quantized
    layers[f"{name}.quantization"] = "nvfp4" if is_quantized else None
    layers[f"{name}.awq_block_size"] = 16 if is_quantized else 0


def _compressed_tensors(config: ModelConfig, quant: QuantConfig) -> dict[str, Any]:
    common = {"num_bits": 8, "type": "float", "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "ignore": ignored_linears(config, quant),
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**common, "strategy": "channel", "dynamic": False},
                "input_activations": {**common, "strategy": "token", "dynamic": True},
                "output_activations": None,
            }
        },
    }
