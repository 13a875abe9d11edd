"""Random numbers that depend on nothing but a key and a counter: Philox-4x32-10 of Salmon, Moraes,
Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), the generator that GPUs use.
"""

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """Four 32-bit words for a 128-bit counter and a 64-bit key, both as 32-bit words, low first."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        left, right = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (right >> 32) ^ c1 ^ k0,
            right & _MASK,
            (left >> 32) ^ c3 ^ k1,
            left & _MASK,
        )
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, for a 64-bit seed and a token's position."""
    low, high, _, _ = philox4x32(
        (position & _MASK, position >> 32, 0, 0), (seed & _MASK, seed >> 32)
    )
    return float(((high << 32 | low) >> 11) * 2.0**-53)
