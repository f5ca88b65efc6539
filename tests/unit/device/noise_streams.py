"""Words of a keyed generator in the orders in which neighbours could be related, and wrong ones.

Knows how specd keys its noise, through the two functions of a `Generator`, and nothing of tests.
Each order is one in which somebody reads the noise, or in which inputs are close or have structure.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from specd.device import noise
from specd.engine import seeds

Words = npt.NDArray[np.integer[Any]]  # of uint32
# SPECD_STATISTICS_SCALE makes the battery and the tests of distributions so many times larger.
SCALE = int(os.environ.get("SPECD_STATISTICS_SCALE", "1"))
NUM_WORDS = SCALE << 20  # of a stream


@dataclass(frozen=True, slots=True)
class Generator:
    """key: (seed, position) -> two words. hash: keys [rows, 2], ids -> words [rows, ids]."""

    key: Callable[[int, int], tuple[int, int]]
    hash: Callable[[Words, int], Words]

    def rows(self, places: Sequence[tuple[int, int]], num_ids: int) -> Words:
        """The words of ids 0 to num_ids - 1 at each (seed, position)."""
        keys = np.array([self.key(*place) for place in places], np.uint32)
        return self.hash(keys, num_ids)


def _hash_of_specd(keys: Words, num_ids: int) -> Words:
    found = noise.hash_words(torch.from_numpy(keys.view(np.int32)), num_ids)
    return found.numpy().view(np.uint32)


SPECD = Generator(seeds.key_words, _hash_of_specd)


# --- orders ---


def ids(generator: Generator) -> Words:
    """As a sampler reads them: a vocabulary, then that of the next position."""
    return generator.rows([(12345, position) for position in range(1, 65)], NUM_WORDS // 64).ravel()


def last_ids(generator: Generator) -> Words:
    """The end of a large vocabulary."""
    places = [(12345, position) for position in range(1, 65)]
    return np.ascontiguousarray(generator.rows(places, 151_936)[:, -NUM_WORDS // 64 :]).ravel()


def positions(generator: Generator) -> Words:
    """One id at all positions, then the next id."""
    return _by_column(generator, [(12345, 1 + t) for t in range(NUM_WORDS >> 8)])


def far_positions(generator: Generator) -> Words:
    """Around 2^31 and 2^32, where narrow integers wrap."""
    places = [(7, start + t) for start in (2**31, 2**32) for t in range(-1024, 1024)]
    return _by_column(generator, places)


def consecutive_seeds(generator: Generator) -> Words:
    """One id at one position of seeds 0, 1, 2..., then the next id."""
    return _by_column(generator, [(seed, 11) for seed in range(NUM_WORDS >> 8)])


def structured_seeds(generator: Generator) -> Words:
    """256 seeds: of one bit, of all bits but one, of ones up to a bit, and of repeated bytes."""
    powers = [1 << bit for bit in range(64)]
    whole = (1 << 64) - 1
    found = {*powers, *(whole ^ power for power in powers), *(power - 1 for power in powers)}
    found |= {byte * 0x0101010101010101 for byte in range(64, 130)}
    return _by_column(generator, [(seed, 11) for seed in sorted(found)])


def sequences(generator: Generator) -> Words:
    """One id at one position of the 16 sequences of a request, then the next position."""
    places = product(range(1, 257), range(16))
    return _by_column(generator, [(seeds.sequence_seed(5, k), t) for t, k in places])


def seed_and_position(generator: Generator) -> Words:
    """Inputs whose sum, or whose difference, stays the same."""
    up = [(seed, 5000 + seed) for seed in range(2048)]
    down = [(seed, 5000 - seed) for seed in range(2048, 4096)]
    return _by_column(generator, [*up, *down])


def diagonal(generator: Generator) -> Words:
    """The id rises with the position: a text whose sequence of ids is close to that of places."""
    rows = generator.rows([(3, 1 + t) for t in range(1024)], NUM_WORDS >> 9)
    shifts = np.arange(1024)[:, None] + np.arange(NUM_WORDS >> 10)
    return np.take_along_axis(rows, shifts % rows.shape[1], 1).T.ravel()


def _by_column(generator: Generator, places: Sequence[tuple[int, int]]) -> Words:
    return generator.rows(places, NUM_WORDS // len(places)).T.ravel()


ORDERS: dict[str, Callable[[Generator], Words]] = {
    order.__name__: order
    for order in (
        ids,
        structured_seeds,
        last_ids,
        positions,
        far_positions,
        consecutive_seeds,
        sequences,
        seed_and_position,
        diagonal,
    )
}


# --- planted: each is a fault that a keyed generator could have ---


def mix(x: Words) -> Words:
    """One round of lowbias32."""
    x = (x ^ x >> 16) * np.uint32(0x7FEB352D)
    x = (x ^ x >> 15) * np.uint32(0x846CA68B)
    return x ^ x >> 16


def _half_mix(x: Words) -> Words:
    x = (x ^ x >> 16) * np.uint32(0x7FEB352D)
    return x ^ x >> 15


def _shifts_only(x: Words) -> Words:
    x = x ^ x << 13
    x = x ^ x >> 17
    return x ^ x << 5


def _keyed(
    rounds: Callable[[Words, Words, Words], Words],
) -> Callable[[Words, int], Words]:
    """Make a hash of `rounds(id, high word, low word)`."""

    def of(keys: Words, num_ids: int) -> Words:
        return rounds(np.arange(num_ids, dtype=np.uint32), keys[:, :1], keys[:, 1:])

    return of


def _unmixed_key(seed: int, position: int) -> tuple[int, int]:
    key = (seed + position * 0x9E3779B97F4A7C15) % 2**64
    return key >> 32, key % 2**32


def _of_hash(rounds: Callable[[Words, Words, Words], Words]) -> Generator:
    return Generator(seeds.key_words, _keyed(rounds))


PLANTED: dict[str, Generator] = {
    "the key enters at one round only": _of_hash(lambda x, a, b: mix(mix(x ^ a))),
    "the second round is missing": _of_hash(lambda x, a, b: mix(x ^ a) ^ b),
    "the first round is missing": _of_hash(lambda x, a, b: mix(x ^ a ^ b)),
    "a round multiplies once": _of_hash(lambda x, a, b: _half_mix(_half_mix(x ^ a) ^ b)),
    "shifts alone": _of_hash(lambda x, a, b: _shifts_only(_shifts_only(x ^ a) ^ b)),
    "a linear congruence": _of_hash(
        lambda x, a, b: (x ^ a) * np.uint32(1664525) + np.uint32(1013904223) ^ b
    ),
    "24 bits": _of_hash(lambda x, a, b: mix(mix(x ^ a) ^ b) & np.uint32(0xFFFFFF00)),
    "16-bit ids": _of_hash(lambda x, a, b: mix(mix(x % 65536 ^ a) ^ b)),
    "the key is not mixed": Generator(_unmixed_key, _hash_of_specd),
    "the position is left out": Generator(lambda s, t: seeds.key_words(s, 0), _hash_of_specd),
    "the seed has 32 bits": Generator(lambda s, t: seeds.key_words(s % 2**32, t), _hash_of_specd),
    "the position has 16 bits": Generator(
        lambda s, t: seeds.key_words(s, t % 2**16), _hash_of_specd
    ),
}
