"""Tests of distributions, in plain arithmetic. False-alarm rates are stated where they are used.

Every random input is seeded, so a test passes or fails once and for all; the rates say how likely
it was that a right implementation would have been unlucky on the day the seed was chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

FALSE_ALARM = 1e-6  # of each test that says nothing else


def chi_square_tail(statistic: float, degrees: int) -> float:
    """P(chi-square with `degrees` > statistic)."""
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def normal_two_sided(z: float) -> float:
    """P(|standard normal| > |z|)."""
    return math.erfc(abs(z) / math.sqrt(2))


def chi_square(counts: Sequence[int], expected: Sequence[float]) -> float:
    """The p-value of `counts` against expected shares; a count where the share is 0 gives 0.

    Shares are joined, smallest first, until each cell expects 5.
    """
    total = sum(counts)
    cells: list[tuple[float, float]] = []
    seen, wanted = 0.0, 0.0
    for share, count in sorted(zip(expected, counts, strict=True)):
        if share == 0:
            if count:
                return 0.0
            continue
        seen, wanted = seen + count, wanted + share * total
        if wanted >= 5:
            cells.append((seen, wanted))
            seen, wanted = 0.0, 0.0
    if wanted:
        last = cells.pop() if cells else (0.0, 0.0)
        cells.append((last[0] + seen, last[1] + wanted))
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    return chi_square_tail(statistic, len(cells) - 1) if len(cells) > 1 else 1.0


def kolmogorov_smirnov(values: Tensor, cdf: Tensor) -> float:
    """The p-value (Kolmogorov's limit law) of n values whose law's cdf was taken at them, sorted.

    values: [n], only its size counts; cdf: [n], ascending.
    """
    n = values.numel()
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    distance = max(float((steps[1:] - cdf).max()), float((cdf - steps[:-1]).max()))
    scaled = distance * math.sqrt(n)
    terms = ((-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101))
    return float(min(1.0, max(0.0, 2 * sum(terms))))
