"""SwiGLU of a dense MLP.

    swiglu(gate_up [n, 2 F]) -> [n, F]

silu(gate) * up in fp32 with one rounding; gate columns come first. Experts do the same inside
`moe`, where the kernel fuses it with requantization.
"""
