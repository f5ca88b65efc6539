"""Drafters that know the answer and make what they like of it: right, wrong, late, broken.

Imports the contract alone, like any user's file. What they know is a recording, a JSON list of
texts (prompt and answer as one list of ids), whose path the environment names; it is read when a
request begins, and again when it has changed.

Invariant: those that fail do so in two calls of three. The third call is right, so that no breaker
opens and they are asked to the end.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from drafters.contract import BaseDrafter, DraftContext, EndReason, SamplingHint

RECORDING = "DRAFTERS_RECORDING"
NUM_IDS = 256  # ids that every vocabulary has
OVERSLEPT_S, BLOCKED_S = 0.05, 0.012  # longer than a draft is waited for
_LONG = 64
_ILLEGAL = (-1, 2**31, 2**32, "one", None)


class Replay(BaseDrafter):
    """Knows how a text goes on, if the recording has it."""

    inline: ClassVar[bool] = True

    def __init__(self) -> None:
        self._texts: dict[str, list[list[int]]] = {}

    def begin(self, request_id: str, prompt: Sequence[int], sampling: SamplingHint) -> None:
        start = list(prompt)
        mine = [text for text in _recording() if text[: len(start)] == start]
        self._texts[request_id] = sorted(mine, key=len, reverse=True)

    def end(self, request_id: str, reason: EndReason) -> None:
        del self._texts[request_id]

    def right(self, row: DraftContext, size: int) -> list[int]:
        """The next `size` tokens of the recorded text; the last token again behind its end."""
        known = list(row.tokens)
        for text in self._texts[row.request_id]:
            if text[: len(known)] == known:
                found = text[len(known) : len(known) + size]
                return found + [known[-1]] * (size - len(found))
        return []

    def all_right(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> list[list[int]]:
        """For each row as many right tokens as it can use."""
        return [self.right(row, budget) for row, budget in zip(batch, budgets, strict=True)]


class Oracle(Replay):
    """Always right, and goes on past every end."""

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        return self.all_right(batch, budgets)


class Long(Replay):
    """Right, and more than fits."""

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        return [self.right(row, _LONG) for row in batch]


class Wrong(Replay):
    """Never the token that comes."""

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        return [[wrong(token) for token in row] for row in self.all_right(batch, budgets)]


class Ragged(Replay):
    """Random lengths, right up to a random place; awaited."""

    inline: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(7)

    async def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        await asyncio.sleep(0)
        return [self._row(row, budget) for row, budget in zip(batch, budgets, strict=True)]

    def _row(self, row: DraftContext, budget: int) -> list[int]:
        draft = self.right(row, self._random.randrange(0, 2 * budget + 1))
        true = self._random.randrange(0, budget + 1)
        return draft[:true] + [self._random.randrange(NUM_IDS) for _ in draft[true:]]


class Nothing(BaseDrafter):
    """No draft for anybody."""

    inline: ClassVar[bool] = True


class Failing(Replay):
    """Counts its calls: two of three go wrong."""

    def __init__(self) -> None:
        super().__init__()
        self._num_calls = 0

    def goes_wrong(self) -> bool:
        """Whether this call is one that fails."""
        self._num_calls += 1
        return self._num_calls % 3 != 0


class Crashing(Failing):
    """Raises."""

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        if self.goes_wrong():
            raise LookupError("it has no idea")
        return self.all_right(batch, budgets)


class Lying(Failing):
    """Puts what is no token of any vocabulary behind a right one."""

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        right = self.all_right(batch, budgets)
        if not self.goes_wrong():
            return right
        bad = _ILLEGAL[self._num_calls % len(_ILLEGAL)]
        return [[*row[:1], bad, *row[1:]] for row in right]


class Late(Failing):
    """Awaited; sleeps for longer than anybody waits."""

    inline: ClassVar[bool] = False

    async def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        if self.goes_wrong():
            await asyncio.sleep(OVERSLEPT_S)
        return self.all_right(batch, budgets)


class Blocking(Failing):
    """On a thread of its own; comes back when the step has gone on, with a draft for its base."""

    inline: ClassVar[bool] = False

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        right = self.all_right(batch, budgets)
        if self.goes_wrong():
            time.sleep(BLOCKED_S)
        return right


def wrong(token: int) -> int:
    """A legal id that is not this one."""
    return token - 1 if token else 1


def _recording() -> list[list[int]]:
    path = Path(os.environ[RECORDING])
    if not path.exists():
        return []
    found = path.stat()
    return _read(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=1)
def _read(path: Path, mtime_ns: int, size: int) -> list[list[int]]:
    texts: list[list[int]] = json.loads(path.read_text())
    return texts
