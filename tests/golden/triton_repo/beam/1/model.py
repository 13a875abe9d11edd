"""Triton model `beam`: streams answers. Everything is in beam_trt.triton.backend.

Written by beam-trt VERSION; `beam-trt repo` writes it anew.
"""

import sys

import triton_python_backend_utils as pb_utils

try:
    from beam_trt.triton.backend import Backend
except ImportError as error:
    raise RuntimeError(
        f"beam: beam_trt cannot be imported by the Python that Triton runs ({sys.prefix}): "
        f"{error}. Install beam-trt there, or put the bin folder of the environment that has it "
        "first in PATH before starting tritonserver."
    ) from error


class TritonPythonModel:
    """Triton creates one per model instance and calls these three methods."""

    def initialize(self, args):
        self.backend = Backend(pb_utils, args)

    def execute(self, requests):
        self.backend.execute(requests)

    def finalize(self):
        self.backend.close()
