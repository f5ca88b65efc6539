"""Finds stop strings in a growing text and holds back only what may still become one.

Knows characters, not tokens or bytes. `push` takes the text of one token, never of a whole
accepted run: which match wins depends on where tokens end, and so must not depend on how many of
them a step happened to accept. Each stop string is followed by its own prefix automaton, so a
character costs the same however long the strings are.

Invariant: what was released so far, and a match's text, never change however the model goes on;
the held text is always the longest end of the text that begins some stop string.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopScan:
    """`text` may be shown now; `matched` is the stop string that ends the generation, if any."""

    text: str
    matched: str | None = None


class _Follower:
    """Tracks how much of one stop string the text ends with, the whole string left out."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        self._shorter = _shorter_borders(stop)

    def advance(self, character: str) -> bool:
        """Take one more character; True where the text now ends with the whole stop string."""
        length = self.length
        while length and self.stop[length] != character:
            length = self._shorter[length]
        length += self.stop[length] == character
        is_whole = length == len(self.stop)
        # Behind a whole one the next may have begun already: "aa" comes twice in "aaa".
        self.length = self._shorter[length] if is_whole else length
        return is_whole


def _shorter_borders(stop: str) -> list[int]:
    """At n: the length of the longest proper prefix of stop[:n] that also ends it."""
    borders = [0, 0]
    for place in range(1, len(stop)):
        length = borders[place]
        while length and stop[length] != stop[place]:
            length = borders[length]
        borders.append(length + (stop[length] == stop[place]))
    return borders


class TextStops:
    """One per generated sequence. `include`: a match's own text is released too."""

    def __init__(self, stop_strings: Sequence[str], *, include: bool) -> None:
        """`stop_strings` have at least one character each."""
        assert all(stop_strings)
        self._followers = [_Follower(stop) for stop in dict.fromkeys(stop_strings)]
        self._include = include
        self._held = ""
        self._matched = False

    def push(self, text: str, *, counts: bool = True) -> StopScan:
        """Scan the text of one more token.

        Of several matches that this token completes, the one that begins first wins, the longest
        where several begin there; none does where it does not count. A later match may overlap one
        that did not count. Nothing is pushed after a match.
        """
        assert not self._matched
        pending = self._held + text
        match = self._earliest_match(text, len(self._held))
        if match is None or not counts:
            num_held = max((follower.length for follower in self._followers), default=0)
            cut = len(pending) - num_held
            self._held = pending[cut:]
            return StopScan(pending[:cut])
        start, stop = match
        self._matched, self._held = True, ""
        end = start + len(stop) if self._include else start
        return StopScan(pending[:end], stop)

    def flush(self) -> str:
        """Release what is held, for a generation that ends without a match."""
        held, self._held = self._held, ""
        for follower in self._followers:
            follower.length = 0
        return held

    def _earliest_match(self, text: str, offset: int) -> tuple[int, str] | None:
        """The winning match as (start in held + text, stop string)."""
        best: tuple[int, str] | None = None
        for end, character in enumerate(text, offset + 1):
            for follower in self._followers:
                if follower.advance(character):
                    found = end - len(follower.stop), follower.stop
                    if best is None or (found[0], -len(found[1])) < (best[0], -len(best[1])):
                        best = found
        return best
