"""beam-trt: from a Beam checkpoint to a production endpoint on NVIDIA GPUs."""

__version__ = "0.1.0"
