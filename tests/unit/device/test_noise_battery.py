"""Keyed noise is as good as random, in every order in which somebody could read it.

A p-value below `FALSE_ALARM` (1e-6) fails. There are fewer than 150 of them, so a perfect generator
would have failed here with a probability of at most 1.5e-4 on the day the inputs were chosen; the
inputs are fixed, so it never will again. Every planted generator is caught.
SPECD_STATISTICS_SCALE=64 takes streams of 2^26 words instead of 2^20.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from tests.unit.device.noise_streams import (
    ORDERS,
    PLANTED,
    SCALE,
    SPECD,
    Generator,
    Words,
    mix,
)
from tests.unit.device.randomness import BATTERY, both_sides, chi_square_both
from tests.unit.device.statistics import FALSE_ALARM, chi_square_tail

NUM_BASES = 512 * SCALE  # of each flipped bit
WORD = 32


@pytest.mark.parametrize("order", ORDERS)
def test_words_pass_the_battery_in_every_order(order: str) -> None:
    words = ORDERS[order](SPECD)
    values = {name: test(words) for name, test in BATTERY.items()}
    assert min(values.values()) > FALSE_ALARM, values


# --- avalanche: a flipped bit of any input flips half of the output ---


def flipped_seed_bits(generator: Generator) -> Iterator[tuple[Words, Words]]:
    yield from _flipped(generator, 64, lambda seed, t, flip: (seed ^ flip, t))


def flipped_position_bits(generator: Generator) -> Iterator[tuple[Words, Words]]:
    yield from _flipped(generator, 32, lambda seed, t, flip: (seed, t ^ flip))


def _flipped(
    generator: Generator, num_bits: int, flip: Callable[[int, int, int], tuple[int, int]]
) -> Iterator[tuple[Words, Words]]:
    """For each bit, words [bases, 8 ids] before and behind its flip."""
    rng = np.random.default_rng(1)
    bases = [(int(seed), int(t)) for seed, t in rng.integers(0, 2**63, (NUM_BASES, 2)) >> [0, 42]]
    before = generator.rows(bases, 8)
    for bit in range(num_bits):
        yield before, generator.rows([flip(*base, 1 << bit) for base in bases], 8)


def flipped_id_bits(generator: Generator) -> Iterator[tuple[Words, Words]]:
    rows = generator.rows([(99, t) for t in range(1, 17)], 1 << 17)
    for bit in range(17):
        lower = np.flatnonzero(np.arange(1 << 17) >> bit & 1 == 0)[:: 32 // SCALE or 1]
        yield rows[:, lower], rows[:, lower | 1 << bit]


def flipped_key_bits(generator: Generator) -> Iterator[tuple[Words, Words]]:
    """The word of the second round, which is behind the mix of seed and position."""
    keys = np.random.default_rng(2).integers(0, 2**32, (NUM_BASES, 2), np.uint32)
    before = generator.hash(keys, 8)
    for bit in range(WORD):
        flip = np.array([0, 1 << bit], np.uint32)
        yield before, generator.hash(keys ^ flip, 8)


Inputs = Callable[[Generator], Iterator[tuple[Words, Words]]]


def bits_that_flip(inputs: Inputs, generator: Generator) -> float:
    """Each bit of the word flips half of the time, whichever bit of the input does."""
    statistic, degrees = 0.0, 0
    for before, behind in inputs(generator):
        flips = (before ^ behind).ravel()
        per_bit = np.array([np.count_nonzero(flips >> bit & 1) for bit in range(WORD)])
        statistic += float(((per_bit - flips.size / 2) ** 2 / (flips.size / 4)).sum())
        degrees += WORD
    return both_sides(chi_square_tail(statistic, degrees))


def number_that_flips(inputs: Inputs, generator: Generator) -> float:
    """How many flip follows the binomial law, so that no two go together."""
    together: npt.NDArray[np.int64] = np.zeros(WORD + 1, np.int64)
    for before, behind in inputs(generator):
        together += np.bincount(np.bitwise_count(before ^ behind).ravel(), minlength=WORD + 1)
    law = np.array([math.comb(WORD, count) / 2**WORD for count in range(WORD + 1)])
    cells = np.clip(np.arange(WORD + 1), 7, 25) - 7  # the rarest are joined
    expected = np.bincount(cells, weights=law) * together.sum()
    return chi_square_both(np.bincount(cells, weights=together), expected)


# One round stands behind the key's low word, too few for the second law. It is not needed there:
# no two keys differ in one bit but by chance.
AVALANCHES: dict[str, tuple[Inputs, Callable[[Inputs, Generator], float]]] = {
    f"{inputs.__name__}-{law.__name__}": (inputs, law)
    for inputs, law in [
        *product(
            (flipped_seed_bits, flipped_position_bits, flipped_id_bits),
            (bits_that_flip, number_that_flips),
        ),
        (flipped_key_bits, bits_that_flip),
    ]
}


@pytest.mark.parametrize("name", AVALANCHES)
def test_a_flipped_bit_of_any_input_flips_half_of_the_word(name: str) -> None:
    inputs, law = AVALANCHES[name]
    assert law(inputs, SPECD) > FALSE_ALARM


# --- rows of two keys are no shuffles of each other ---


def most_shared(generator: Generator) -> int:
    """The largest number of words that two of 16,384 rows of 256 have in common.

    Of random rows, two share three words with a probability of 1e-7.
    """
    rows = generator.rows([(77, t) for t in range(1, 1 << 14)], 256)
    order = np.argsort(rows, axis=None, kind="stable")
    sorted_words = rows.ravel()[order]
    same = np.flatnonzero(sorted_words[1:] == sorted_words[:-1])
    owners = order // 256
    pairs = owners[same].astype(np.int64) << 32 | owners[same + 1]
    return int(np.unique(pairs, return_counts=True)[1].max()) if pairs.size else 0


def test_no_two_rows_hold_the_same_words_in_another_order() -> None:
    assert most_shared(SPECD) < 3


# --- the tests themselves ---


def findings(generator: Generator) -> Iterator[str]:
    """All that finds fault with a generator, the cheapest first."""
    for name, (inputs, law) in AVALANCHES.items():
        if law(inputs, generator) < FALSE_ALARM:
            yield name
    if most_shared(generator) >= 3:
        yield most_shared.__name__
    for order, words_of in ORDERS.items():
        words = words_of(generator)
        yield from (f"{n} of {order}" for n, test in BATTERY.items() if test(words) < FALSE_ALARM)


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_generator_is_caught(fault: str) -> None:
    assert next(findings(PLANTED[fault]), None)


@pytest.mark.parametrize("name", BATTERY)
def test_each_test_of_the_battery_catches_one_and_passes_a_good_one(name: str) -> None:
    test = BATTERY[name]
    assert any(test(ORDERS["ids"](planted)) < FALSE_ALARM for planted in PLANTED.values())
    good = np.random.Generator(np.random.Philox(4)).integers(0, 2**32, 1 << 20, np.uint32)
    assert test(good) > FALSE_ALARM


def test_the_planted_ones_are_made_of_the_right_mix() -> None:
    """Else they would be caught for a reason of their own."""
    keys = np.array([SPECD.key(1, 2), SPECD.key(3, 4)], np.uint32)
    ids = np.arange(5000, dtype=np.uint32)
    assert np.array_equal(SPECD.hash(keys, 5000), mix(mix(ids ^ keys[:, :1]) ^ keys[:, 1:]))
