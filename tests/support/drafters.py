"""Scripted drafters: each does one thing on purpose and keeps an account of what it was told.

They use the public contract alone. `Recorder.events` holds every call in order, as tuples that
start with the method's name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import anyio

from drafters.contract import BaseDrafter, DraftContext, EndReason, SamplingHint

# How long a test waits for something that should take microseconds.
PATIENCE_S = 10.0

Script = Callable[[Sequence[DraftContext], Sequence[int]], Any]


def constant(*token_ids: int) -> Script:
    """Answer every row with the same draft."""
    return lambda batch, budgets: [list(token_ids) for _ in batch]


def nothing(batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
    """Answer no row."""
    return [None for _ in batch]


def raising(error: BaseException) -> Script:
    """Raise instead of answering."""

    def script(batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        raise error

    return script


class Recorder(BaseDrafter):
    """Writes down what it is told; `script` makes its answers and may be changed between steps.

    `failing` names methods (begin, observe, end) that raise ValueError after writing down.
    """

    def __init__(self, script: Script = nothing, failing: Sequence[str] = ()) -> None:
        self.script = script
        self.failing = set(failing)
        self.events: list[tuple[Any, ...]] = []

    def begin(self, request_id: str, prompt: Sequence[int], sampling: SamplingHint) -> None:
        self._note("begin", request_id, list(prompt))

    def observe(self, request_id: str, tokens: Sequence[int], accepted: int) -> None:
        self._note("observe", request_id, list(tokens), accepted)

    def end(self, request_id: str, reason: EndReason) -> None:
        self._note("end", request_id, reason)

    def note_propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> None:
        rows = [(row.request_id, list(row.tokens)) for row in batch]
        self.events.append(("propose", rows, list(budgets)))

    def heard_of(self, request_id: str) -> list[str]:
        """Return the names of the calls that concerned a request, in order."""
        return [
            event[0]
            for event in self.events
            if event[1] == request_id
            or (event[0] == "propose" and request_id in [row[0] for row in event[1]])
        ]

    def _note(self, *event: Any) -> None:
        self.events.append(event)
        if event[0] in self.failing:
            raise ValueError(f"{event[0]} fails on purpose")


class InlineDrafter(Recorder):
    """Answers on the event loop."""

    inline: ClassVar[bool] = True

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        self.note_propose(batch, budgets)
        return self.script(batch, budgets)


class AsyncDrafter(Recorder):
    """Is awaited; with `delay_s` it sleeps first, and counts how often it was cancelled there."""

    def __init__(
        self, script: Script = nothing, delay_s: float = 0.0, failing: Sequence[str] = ()
    ) -> None:
        super().__init__(script, failing)
        self.delay_s = delay_s
        self.num_cancelled = 0

    async def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        self.note_propose(batch, budgets)
        try:
            await anyio.sleep(self.delay_s)
        except anyio.get_cancelled_exc_class():
            self.num_cancelled += 1
            raise
        return self.script(batch, budgets)


class BlockingDrafter(Recorder):
    """Blocks its thread until `gate` is set (it starts open); `entered` tells that it is in.

    `told` is set whenever begin, observe or end has been called.
    """

    def __init__(self, script: Script = nothing, failing: Sequence[str] = ()) -> None:
        super().__init__(script, failing)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.told = threading.Event()
        self.threads: set[str] = set()

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        self.note_propose(batch, budgets)
        self.threads.add(threading.current_thread().name)
        answers = self.script(
            batch, budgets
        )  # before the wait, so that a late answer is an old one
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        return answers

    def _note(self, *event: Any) -> None:
        self.threads.add(threading.current_thread().name)
        self.told.set()
        super()._note(*event)


class OracleDrafter(BaseDrafter):
    """Replays recorded texts (prompt and output as one list of ids): its drafts are all right.

    `size` limits a draft, None goes to the budget. `shift` other than 0 makes every token wrong.
    """

    inline: ClassVar[bool] = True

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        size: int | None = None,
        shift: int = 0,
        num_ids: int = 2,
    ) -> None:
        self._texts = [list(text) for text in texts]
        self._size = size
        self._shift = shift
        self._num_ids = num_ids

    def propose(
        self, batch: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[list[int] | None]:
        return [self._row(list(row.tokens), n) for row, n in zip(batch, budgets, strict=True)]

    def _row(self, tokens: list[int], budget: int) -> list[int] | None:
        size = budget if self._size is None else min(budget, self._size)
        for text in self._texts:
            if text[: len(tokens)] == tokens:
                right = text[len(tokens) : len(tokens) + size]
                return right if not self._shift else [self._wrong(token) for token in right]
        return None

    def _wrong(self, token: int) -> int:
        return (token + self._shift) % self._num_ids


class WrongDrafter(OracleDrafter):
    """Never proposes the token that the recorded text has at the position."""

    def __init__(
        self, texts: Sequence[Sequence[int]], num_ids: int, size: int | None = None
    ) -> None:
        super().__init__(texts, size=size, shift=1, num_ids=num_ids)
