"""Integers from seeds: the key of a token's noise, and the seed of each sequence of a request.

Knows 64-bit arithmetic and nothing of noise, tensors or requests. Any language can compute it; the
constants are those of SplitMix64 and of a common multiplicative generator.
Invariant: every result is a pure function of its arguments, within the unsigned range it names.
"""

from __future__ import annotations

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
# Not the multiplier of positions: else a sequence would draw the noise of another at a shift.
_BETWEEN_SEQUENCES = 0xD1342543DE82EF95


def finalise(z: int) -> int:
    """The output function of SplitMix64: a bijection of 64-bit integers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK64
    return z ^ (z >> 31)


def key_words(seed: int, position: int) -> tuple[int, int]:
    """The two unsigned 32-bit words of (seed, position); position counts the prompt too."""
    key = finalise((finalise(seed & _MASK64) + position * _GOLDEN) & _MASK64)
    return key >> 32, key & 0xFFFFFFFF


def sequence_seed(seed: int, index: int) -> int:
    """The unsigned 64-bit seed of sequence `index`; that of sequence 0 is the request's own."""
    if index == 0:
        return seed
    return finalise((finalise(seed & _MASK64) + index * _BETWEEN_SEQUENCES) & _MASK64)
