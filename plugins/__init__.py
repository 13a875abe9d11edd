"""beam_trt_plugins: the kernels of a Beam step as torch ops.

Knows nothing about engines or requests.
"""
