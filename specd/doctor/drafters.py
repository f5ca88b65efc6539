"""Drafters that know how each text goes on, and make of it what they are told to.

They use the public contract alone. Knows texts by request id, prompt and answer as one list; a
request that has none gets no draft.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from drafters.contract import BaseDrafter, DraftContext

# The true tokens from here on, at most as many as can be used, and how many those are -> a draft.
Change = Callable[[Sequence[int], int], Sequence[int]]


class Knowing(BaseDrafter):
    """Drafts what `change` makes of the truth."""

    inline: ClassVar[bool] = True

    def __init__(self, texts: Mapping[str, Sequence[int]], change: Change) -> None:
        self._texts = texts
        self._change = change

    def propose(
        self, batch: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[Sequence[int] | None]:
        """One draft per row."""
        return [self._row(row, budget) for row, budget in zip(batch, budgets, strict=True)]

    def _row(self, row: DraftContext, budget: int) -> Sequence[int] | None:
        text, at = self._texts.get(row.request_id, ()), len(row.tokens)
        true = text[at : at + budget]
        return self._change(true, budget) if true else None


def oracle(true: Sequence[int], budget: int) -> Sequence[int]:
    """Every token is right."""
    return true


def wrong(vocab_size: int) -> Change:
    """No token is right."""
    return lambda true, budget: [(token + 1) % vocab_size for token in true]


def ragged(vocab_size: int, rng: random.Random) -> Change:
    """Random lengths, none and too long included, right up to a random place."""

    def change(true: Sequence[int], budget: int) -> Sequence[int]:
        right = rng.randint(0, len(true))
        rest = rng.randint(0, 2 * budget - right)
        return [*true[:right], *rng.choices(range(vocab_size), k=rest)]

    return change
