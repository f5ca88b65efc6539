"""Keyed noise: the random numbers of a token are a pure function of (seed, position, token id).

Counter-based and portable: two 32-bit words, `key_words(seed, position)` of `engine/seeds.py`,
enter at two rounds of a 32-bit integer mix over the token id (the `lowbias32` constants of Chris
Wellons' hash prospector). The integer `h` is exact in every language; the noise
`-log(-log1p(-u))` with `u = (h + 1/2) / 2^32` agrees within 1e-6. Vectors: tests/data/noise.json.
Invariant: nothing here remembers anything, so neither batches nor history can change a draw.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Largest fp32 below 1. Without it u rounds to 1 for h >= 2^32 - 128, and its noise to -infinity.
_BELOW_ONE = 1.0 - 2.0**-24


def _signed(word: int) -> int:
    """The int32 with the same bits: torch has no unsigned 32-bit arithmetic on every device."""
    return word - (1 << 32) if word >= 1 << 31 else word


def key_tensor(keys: list[tuple[int, int]]) -> Tensor:
    """[rows, 2] int32 from unsigned words."""
    return torch.tensor([[_signed(high), _signed(low)] for high, low in keys], dtype=torch.int32)


def _xor_shift(x: Tensor, bits: int) -> Tensor:
    """x ^= x >> bits as on unsigned words; the mask removes the copies of the sign bit."""
    return x.bitwise_xor_(torch.bitwise_right_shift(x, bits).bitwise_and_((1 << (32 - bits)) - 1))


def _mix(x: Tensor) -> Tensor:
    """One round of lowbias32, in place; int32 multiplication wraps as on unsigned words."""
    _xor_shift(x, 16).mul_(_signed(0x7FEB352D))
    _xor_shift(x, 15).mul_(_signed(0x846CA68B))
    return _xor_shift(x, 16)


def hash_words(keys: Tensor, vocab_size: int) -> Tensor:
    """keys int32 [rows, 2] -> h as int32 bits, [rows, vocab]."""
    ids = torch.arange(vocab_size, dtype=torch.int32, device=keys.device)
    words = _mix(ids[None] ^ keys[:, :1])
    return _mix(words.bitwise_xor_(keys[:, 1:]))


def gumbel(keys: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise, fp32 [rows, vocab]."""
    # int32 bits -> unsigned value + 1/2, scaled: the constant adds 2^31 to what is read as signed.
    unsigned = hash_words(keys, vocab_size).bitwise_xor_(-(1 << 31)).double()
    uniform = unsigned.add_(2.0**31 + 0.5).mul_(2.0**-32).float().clamp_(max=_BELOW_ONE)
    return uniform.neg_().log1p_().neg_().log_().neg_()
