"""Run as a program: ModelOpt's own whole-model NVFP4 export, to compare with.

    python modelopt_export.py JOBS_JSON

JOBS_JSON is a list of {checkpoint, samples (token ids), out, experts_only}. In its own process
because ModelOpt monkey-patches torch and transformers.
"""

import copy
import json
import sys
import warnings
from typing import Any

import torch


def export(job: dict[str, Any]) -> None:
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(job["checkpoint"], dtype=torch.bfloat16).eval()

    def forward_loop(model: torch.nn.Module) -> None:
        with torch.no_grad():
            for ids in job["samples"]:
                model(torch.tensor([ids]), use_cache=False)

    name = "NVFP4_EXPERTS_ONLY_CFG" if job["experts_only"] else "NVFP4_DEFAULT_CFG"
    model = mtq.quantize(model, copy.deepcopy(getattr(mtq, name)), forward_loop)
    export_hf_checkpoint(model, export_dir=job["out"])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with open(sys.argv[1]) as file:
        for each in json.load(file):
            export(each)
