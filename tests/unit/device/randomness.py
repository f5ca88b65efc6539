"""A battery for generators of 32-bit words: each test is a function from words to a p-value.

The tests are those of Knuth (The Art of Computer Programming 2, 3.3), Marsaglia's diehard and
NIST SP 800-22 that suit words, from their definitions. Every p-value is two-sided: a generator that
is too even fails as one that is too odd does.
Invariant: a p-value depends on the words alone, so a result holds for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.unit.device.statistics import chi_square_tail, normal_two_sided

Words = npt.NDArray[np.integer[Any]]  # of uint32
Counts = npt.NDArray[np.int64]
WORD = 32


def chi_square_both(counts: npt.NDArray[Any], expected: npt.NDArray[Any] | float) -> float:
    """Two-sided p-value of counts against what is expected of each."""
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return both_sides(chi_square_tail(statistic, counts.size - 1))


def both_sides(tail: float) -> float:
    return 2 * min(tail, 1 - tail)


def ones(words: Words) -> float:
    """Monobit: half of all bits are set."""
    excess = int(np.bitwise_count(words).sum(dtype=np.int64)) - words.size * WORD / 2
    return normal_two_sided(excess / math.sqrt(words.size * WORD / 4))


def each_bit(words: Words) -> float:
    """Each of the 32 bits is set half of the time."""
    set_bits = np.array([np.count_nonzero(words >> bit & 1) for bit in range(WORD)])
    z = (set_bits - words.size / 2) / math.sqrt(words.size / 4)
    return both_sides(chi_square_tail(float((z**2).sum()), WORD))


def bytes_of_each_place(words: Words) -> float:
    """All 256 values in each of the four bytes."""
    lanes = words.view(np.uint8).reshape(-1, 4)
    counts = np.stack([np.bincount(lanes[:, place], minlength=256) for place in range(4)])
    expected = words.size / 256
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return both_sides(chi_square_tail(statistic, 4 * 255))


def number_of_ones(words: Words) -> float:
    """Ones per word, and per neighbouring word, follow the binomial law together."""
    found = np.bitwise_count(words).astype(np.int64)
    law = np.array([math.comb(WORD, count) / 2**WORD for count in range(WORD + 1)])
    # 10 to 22 have cells of their own; what is rarer is joined to the ends.
    cell = np.clip(np.arange(WORD + 1), 9, 23) - 9
    shares = np.bincount(cell, weights=law)
    pairs = cell[found[:-1:2]] * shares.size + cell[found[1::2]]
    expected = np.outer(shares, shares).ravel() * pairs.size
    counts = np.bincount(pairs, minlength=expected.size)
    return chi_square_both(counts, expected)


def runs_of_bits(words: Words) -> float:
    """Bits change to their neighbour's opposite half of the time (NIST runs)."""
    inside = (words ^ words >> 1) & 0x7FFFFFFF
    between = (words[:-1] ^ words[1:] >> 31) & 1
    changes = int(np.bitwise_count(inside).sum(dtype=np.int64)) + int(np.count_nonzero(between))
    size = words.size * WORD
    share = int(np.bitwise_count(words).sum(dtype=np.int64)) / size
    expected = 2 * size * share * (1 - share)
    return normal_two_sided((changes - expected) / (2 * math.sqrt(size) * share * (1 - share)))


def runs_of_sizes(words: Words) -> float:
    """Runs above and below the middle have the right number (Wald and Wolfowitz)."""
    above = words >= 1 << 31
    high = int(np.count_nonzero(above))
    low = words.size - high
    expected = 2 * high * low / words.size + 1
    variance = (expected - 1) * (expected - 2) / (words.size - 1)
    runs = 1 + int(np.count_nonzero(above[1:] != above[:-1]))
    return normal_two_sided((runs - expected) / math.sqrt(variance))


def serial_correlation(words: Words) -> float:
    """Neighbours are not correlated."""
    centred = (words.astype(np.float64) + 0.5) / 2**32 - 0.5
    r = float(centred[:-1] @ centred[1:]) / (words.size - 1) * 12
    return normal_two_sided(r * math.sqrt(words.size - 1))


def pairs_of_high_bytes(words: Words) -> float:
    """All pairs of neighbours, by their eight highest bits."""
    return _pairs(words >> 24)


def pairs_of_low_bytes(words: Words) -> float:
    """All pairs of neighbours, by their eight lowest bits."""
    return _pairs(words & 255)


def _pairs(values: Words) -> float:
    cells = values[:-1:2].astype(np.int64) << 8 | values[1::2]
    return chi_square_both(np.bincount(cells, minlength=1 << 16), cells.size / 2**16)


def birthday_spacings(words: Words) -> float:
    """Equal spacings of 4,096 birthdays in a year of 2^32 days: 4 on average (Marsaglia)."""
    birthdays = 4096
    years = np.sort(words[: words.size // birthdays * birthdays].reshape(-1, birthdays), axis=1)
    spacings = np.sort(np.diff(years, axis=1), axis=1)
    equal = int(np.count_nonzero(spacings[:, 1:] == spacings[:, :-1]))
    expected = years.shape[0] * birthdays**3 / 2**34
    return normal_two_sided((equal - expected) / math.sqrt(expected))


def collisions_of_high_bits(words: Words) -> float:
    """16,384 balls in 2^20 urns, which are the highest bits (Knuth)."""
    return _collisions(words >> 12)


def collisions_of_low_bits(words: Words) -> float:
    """The same with the lowest bits."""
    return _collisions(words & (1 << 20) - 1)


def _collisions(urns: Words) -> float:
    balls = 1 << 14
    throws = np.sort(urns[: urns.size // balls * balls].reshape(-1, balls), axis=1)
    hit = throws.shape[0] + np.count_nonzero(throws[:, 1:] != throws[:, :-1])
    empty = (1 - 2.0**-20) ** balls
    # Variance of the number of occupied urns, balls thrown independently.
    both_empty = (1 - 2.0**-19) ** balls
    variance = 2**20 * (empty + (2**20 - 1) * both_empty - 2**20 * empty**2)
    expected = throws.shape[0] * 2**20 * (1 - empty)
    return normal_two_sided((hit - expected) / math.sqrt(throws.shape[0] * variance))


def ranks_of_matrices(words: Words) -> float:
    """32 words as rows of a matrix of bits have full rank as often as random ones (Marsaglia)."""
    ranks = _ranks(words[: words.size // WORD * WORD].reshape(-1, WORD))
    shares = [_rank_share(WORD), _rank_share(WORD - 1), _rank_share(WORD - 2)]
    expected = np.array([*shares, 1 - sum(shares)]) * ranks.size
    counts = np.bincount(np.minimum(WORD - ranks, 3), minlength=4)
    return chi_square_both(counts, expected)


def _rank_share(rank: int) -> float:
    """How many of the random 32 x 32 matrices of bits have this rank."""
    product = math.prod((1 - 2.0 ** (i - WORD)) ** 2 / (1 - 2.0 ** (i - rank)) for i in range(rank))
    return float(2.0 ** (rank * (2 * WORD - rank) - WORD * WORD) * product)


def _ranks(matrices: Words) -> Counts:
    """[matrices, 32] -> ranks, by a basis whose vectors are told apart by their highest bit."""
    basis = np.zeros((WORD, matrices.shape[0]), np.uint32)
    for row in matrices.T.copy():
        for place in range(WORD - 1, -1, -1):
            has = (row >> place) & 1 == 1
            empty = has & (basis[place] == 0)
            basis[place][empty] = row[empty]
            row ^= np.where(has, basis[place], 0).astype(np.uint32)
    ranks: Counts = (basis != 0).sum(0, dtype=np.int64)
    return ranks


def differences(words: Words) -> float:
    """The bits in which neighbours differ are random too: ones of their exclusive or."""
    return each_bit(words[1:] ^ words[:-1])


BATTERY: dict[str, Callable[[Words], float]] = {
    test.__name__: test
    for test in (
        ones,
        each_bit,
        bytes_of_each_place,
        number_of_ones,
        runs_of_bits,
        runs_of_sizes,
        serial_correlation,
        pairs_of_high_bytes,
        pairs_of_low_bytes,
        birthday_spacings,
        collisions_of_high_bits,
        collisions_of_low_bits,
        ranks_of_matrices,
        differences,
    )
}
