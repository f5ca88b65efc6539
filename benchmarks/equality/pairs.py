"""Few rows in which every pair of values of any two axes meets.

Knows names of axes and values, not what they mean. Invariant: equal axes give equal rows, in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, product

Row = tuple[str, ...]
_Pair = tuple[int, str, int, str]  # an axis and its value, a later axis and its value


def covering_rows(axes: Mapping[str, Sequence[str]]) -> list[Row]:
    """Rows with one value per axis, in the order of the axes; about a tenth more than the fewest.

    Each row starts from a pair that no row has yet, and takes of each other axis the value that
    brings most pairs; where several do, the one whose pairs are rarest so far.
    """
    values = list(axes.values())
    missing = dict.fromkeys(all_pairs(axes))
    used: Counter[_Pair] = Counter()
    rows = []
    while missing:
        row = _row(values, missing, used)
        for pair in pairs_of(row):
            missing.pop(pair, None)
            used[pair] += 1
        rows.append(row)
    return rows


def all_pairs(axes: Mapping[str, Sequence[str]]) -> list[_Pair]:
    """Every pair of values of two axes."""
    numbered = enumerate(axes.values())
    return [
        (first, a, second, b)
        for (first, ours), (second, theirs) in combinations(numbered, 2)
        for a, b in product(ours, theirs)
    ]


def pairs_of(row: Row) -> list[_Pair]:
    """The pairs that one row has."""
    return [(first, a, second, b) for (first, a), (second, b) in combinations(enumerate(row), 2)]


def _row(
    values: Sequence[Sequence[str]], missing: Mapping[_Pair, None], used: Mapping[_Pair, int]
) -> Row:
    first, a, second, b = next(iter(missing))
    chosen = {first: a, second: b}
    # Long axes first: they have most pairs to bring in, and the short ones adapt to them.
    for axis in sorted(set(range(len(values))) - set(chosen), key=lambda axis: -len(values[axis])):
        gains = {}
        for value in values[axis]:
            brought = [_pair(axis, value, *other) for other in chosen.items()]
            fresh = sum(pair in missing for pair in brought)
            gains[value] = (fresh, -sum(used[pair] for pair in brought))
        chosen[axis] = max(gains, key=gains.__getitem__)
    return tuple(chosen[axis] for axis in range(len(values)))


def _pair(axis: int, value: str, other: int, its: str) -> _Pair:
    return (axis, value, other, its) if axis < other else (other, its, axis, value)
