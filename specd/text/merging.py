"""Merges the pieces of a SentencePiece vocabulary by their scores, whatever the scores are.

Knows pieces and bytes; nothing of files. Plain Python, for vocabularies that the `tokenizers`
library cannot be asked about (`sentence_piece.py` says which): no single operation of it is long,
so other threads run beside it. 4 MB of prose took 1.2 s, 4 million times one letter 8 s (the
library: 1.0 and 0.9 s).

Invariant: the neighbours whose joint piece has the highest score merge first, the leftmost of
equal ones, until no two neighbours make a piece.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Mapping

# Words that are kept with their ids; text repeats its short ones.
MAX_WORDS = 1 << 16
MAX_WORD_LENGTH = 64


class Merger:
    """Text to ids over one vocabulary. words: finds the parts that merges never reach over."""

    def __init__(
        self,
        ids: Mapping[str, int],
        scores: Mapping[str, float],
        byte_ids: Mapping[int, int],
        words: re.Pattern[str],
    ) -> None:
        self._ids = ids
        self._scores = scores
        self._byte_ids = byte_ids
        self._words = words
        self._known: dict[str, list[int]] = {}

    def engine(
        self,
        literals: Mapping[str, int],
        prefix: str,
        check: Callable[[str], None],
    ) -> Callable[[str], list[int]]:
        """An engine that takes `literals` whole, and what lies between them behind `prefix`."""
        longest_first = sorted(literals, key=len, reverse=True)
        # No text matches where there is no literal at all.
        pattern = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

        def encode(text: str) -> list[int]:
            check(text)
            ids: list[int] = []
            for place, part in enumerate(pattern.split(text)):
                if place % 2:
                    ids.append(literals[part])
                elif part:
                    spaced = prefix + part.replace(" ", "▁")
                    for found in self._words.finditer(spaced):
                        ids += self._word(found[0])
            return ids

        return encode

    def _word(self, word: str) -> list[int]:
        found = self._known.get(word)
        if found is None:
            found = []
            for piece in merged(word, self._scores):
                whole = self._ids.get(piece)
                found += [self._byte_ids[b] for b in piece.encode()] if whole is None else [whole]
            if len(word) <= MAX_WORD_LENGTH and len(self._known) < MAX_WORDS:
                self._known[word] = found
        return found


def merged(text: str, scores: Mapping[str, float]) -> list[str]:
    """The pieces that `text` becomes."""
    pieces = list(text)
    end = len(pieces)
    before, behind = list(range(-1, end - 1)), list(range(1, end + 1))
    waiting: list[tuple[float, int, str]] = []

    def consider(left: int) -> None:
        if left >= 0 and behind[left] < end:
            joint = pieces[left] + pieces[behind[left]]
            if joint in scores:
                heapq.heappush(waiting, (-scores[joint], left, joint))

    for place in range(end):
        consider(place)
    while waiting:
        _, left, joint = heapq.heappop(waiting)
        right = behind[left]
        # One of the two may have merged with another neighbour since.
        if pieces[left] and right < end and pieces[left] + pieces[right] == joint:
            pieces[left], pieces[right] = joint, ""
            behind[left] = behind[right]
            if behind[left] < end:
                before[behind[left]] = left
            consider(before[left])
            consider(left)
    return [piece for piece in pieces if piece]
