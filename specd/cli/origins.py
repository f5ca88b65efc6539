"""Which part of a streamed text came from accepted draft tokens, and which from the target itself.

Knows how steps lie over token ids: a step's run is its accepted draft tokens, then one token of the
target's own; the last run may be cut. Where a token ends in the text only the daemon knows, so it
is asked for the text of prefixes. A character belongs to the token that completes it; a U+FFFD to
the token whose bytes are broken. Knows nothing of terminals.

Invariant: the pieces joined are the texts of the deltas joined, nothing held and nothing changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from specd_client import Delta, SpeculationStep

Detokenize = Callable[[Sequence[int]], Awaitable[str]]

# Ids that are sent along at most before a place is looked for where they can be let go. Without it
# a long answer costs its length squared; a call costs nearly the same for 1 id and for 100.
WINDOW_TOKENS = 64
_BROKEN = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one origin."""

    text: str
    from_draft: bool


@dataclass(slots=True)
class _Run:
    """Neighbouring tokens of one origin. end: ids of the window up to its last token.

    decoded: the text of these ids, once it was asked for.
    """

    from_draft: bool
    end: int
    decoded: str | None = None


class Origins:
    """One per stream. `detokenize` gives the text of ids as the stream's own options do."""

    def __init__(self, detokenize: Detokenize) -> None:
        self._detokenize = detokenize
        self._ids: list[int] = []
        self._text = ""  # what came of these ids
        self._shown = 0  # characters of it that were given out
        self._runs = [_Run(from_draft=False, end=0)]
        self._place = 0  # the run that the next character belongs to, or a later one

    async def split(self, delta: Delta) -> list[Piece]:
        """The text of a delta by origin. Raises what `detokenize` does."""
        self._take(delta)
        pieces = []
        while self._shown < len(self._text):
            run = self._runs[self._place]
            end = await self._end(run)
            if end > self._shown:
                pieces.append(Piece(self._text[self._shown : end], run.from_draft))
                self._shown = end
            if end < len(self._text):
                self._place += 1
        await self._let_go()
        return pieces

    def _take(self, delta: Delta) -> None:
        origins = origins_of(delta.steps, len(delta.token_ids))
        for token_id, from_draft in zip(delta.token_ids, origins, strict=True):
            self._ids.append(token_id)
            last = self._runs[-1]
            if last.from_draft is from_draft:
                last.end = len(self._ids)
            else:
                self._runs.append(_Run(from_draft, len(self._ids)))
        self._text += delta.text

    async def _end(self, run: _Run) -> int:
        """Where the characters of a run end in the text, as far as it came."""
        if run is self._runs[-1]:
            return len(self._text)
        if run.end == 0:
            return 0
        if run.decoded is None:
            run.decoded = await self._detokenize(self._ids[: run.end])
        end = len(run.decoded)
        if run.decoded.endswith(_BROKEN) and self._text[end - 1 : end] != _BROKEN:
            end -= 1  # a character that a later token completes
        return min(end, len(self._text))

    async def _let_go(self) -> None:
        """Begin a new window where no character is open and no text is held back."""
        if len(self._ids) > WINDOW_TOKENS and await self._detokenize(self._ids) == self._text:
            self._runs = [_Run(self._runs[-1].from_draft, end=0)]
            self._ids, self._text, self._shown, self._place = [], "", 0, 0


def origins_of(steps: Sequence[SpeculationStep], num_tokens: int) -> list[bool]:
    """Per token of a delta whether it is an accepted draft token."""
    origins: list[bool] = []
    for step in steps:
        origins += [True] * step.accepted_draft_tokens + [False]
    return (origins + [False] * num_tokens)[:num_tokens]
