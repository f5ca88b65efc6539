"""Which tokens a request has seen, and how often: what the penalties look at.

Knows tokens in the order in which they become known, and nothing of penalties or rows. It follows
the known tokens, which only grow: preemption takes KV away and no token, and drafts never come
here, so nothing is ever rebuilt or taken back.
Invariant: a view stays as it was made until the next `append`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from specd.engine.step_types import SeenTokens

_SMALLEST = 64  # ids that fit the arrays at first


class TokenCounts:
    """The mutable owner behind `SeenTokens`. A token costs the same however long the text is."""

    def __init__(self, prompt: Sequence[int]) -> None:
        distinct = dict.fromkeys(prompt)
        size = len(distinct)
        room = max(_SMALLEST, 2 * size)
        self._ids = np.zeros(room, np.int64)
        self._in_prompt = np.zeros(room, np.bool_)
        self._counts = np.zeros(room, np.int32)
        self._ids[:size] = np.fromiter(distinct, np.int64, size)
        self._in_prompt[:size] = True
        self._places = {token: place for place, token in enumerate(distinct)}

    def append(self, tokens: Iterable[int]) -> None:
        """Count tokens of the answer."""
        for token in tokens:
            place = self._places.get(token)
            if place is None:
                place = self._place_of_new(token)
            self._counts[place] += 1

    def view(self) -> SeenTokens:
        """What was counted until now, without a copy; for one step."""
        size = len(self._places)
        return SeenTokens(
            ids=self._ids[:size],
            in_prompt=self._in_prompt[:size],
            counts=self._counts[:size],
            places=self._places,
        )

    def _place_of_new(self, token: int) -> int:
        place = len(self._places)
        if place == len(self._ids):
            self._ids, self._in_prompt, self._counts = (
                np.concatenate([old, np.zeros_like(old)])
                for old in (self._ids, self._in_prompt, self._counts)
            )
        self._ids[place] = token
        self._places[token] = place
        return place
