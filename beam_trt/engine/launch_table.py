"""Which implementation of each plugin an engine will run, asked from torch's own dispatcher."""

import importlib
from typing import Any

import torch

from beam_trt import __version__
from beam_trt.config.hardware import Gpu

NAMESPACE = "beam_trt::"


def launch_table(gpu: str | None) -> dict[str, Any]:
    """JSON content of `plugins/launch_table.json`: the target, and per plugin operator the
    implementations that are registered. An operator without one for the target is listed with
    null: the engine's weights are ready for the target, the kernel is not."""
    device = "cpu" if gpu is None else "cuda"
    operators = {}
    for name in plugin_operators():
        implementations = [key.lower() for key in ("CPU", "CUDA") if _has_implementation(name, key)]
        operators[name] = {
            "implementation": device if device in implementations else None,
            "available": implementations,
        }
    return {
        "target": {"device": device, "gpu": gpu, "sm": Gpu.named(gpu).sm if gpu else None},
        "versions": {"beam_trt": __version__, "torch": torch.__version__},
        "operators": operators,
    }


def plugin_operators() -> list[str]:
    """Qualified names of the operators the model runs on, sorted."""
    # Importing the model registers every operator it calls.
    importlib.import_module("beam_trt.model.beam")
    names = torch._C._dispatch_get_all_op_names()
    return sorted(name for name in names if name.startswith(NAMESPACE))


def _has_implementation(name: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))
