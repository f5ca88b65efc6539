"""A drafter behind a guard: whatever it raises or answers comes back as a value.

Knows one drafter's code and which requests it has been told of; knows neither threads, deadlines
nor breakers. All calls of one guest come from one thread (the event loop's or its own).
Invariant: the drafter hears of a request only between a `begin` that succeeded and its `end`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from itertools import islice
from typing import cast

from drafters.contract import DraftContext, Drafter, EndReason, Proposal, SamplingHint

# What a row got: token ids as they came, None for no draft, an exception for a fault.
RowAnswer = Sequence[int] | Exception | None

_log = logging.getLogger("specd.drafting")


class DrafterFault(Exception):
    """A drafter raised something that is no Exception, or answered in a wrong shape."""


class Guest:
    """One drafter, guarded. Counters are written by the guest's thread and read anywhere.

    num_faults: calls and rows that failed. num_untold: failures of begin, observe and end, which
    nobody hears of otherwise.
    """

    def __init__(self, name: str, drafter: Drafter) -> None:
        self.name = name
        self.num_faults = 0
        self.num_untold = 0
        self._drafter = drafter
        self._begun: set[str] = set()
        self._logged: set[type[BaseException]] = set()

    def begin(self, request_id: str, prompt: Sequence[int], sampling: SamplingHint) -> bool:
        """Return whether the drafter took the request; if not, it never hears of it again."""
        took = self._tell(lambda: self._drafter.begin(request_id, prompt, sampling))
        if took:
            self._begun.add(request_id)
        return took

    def observe(self, request_id: str, tokens: Sequence[int], accepted: int) -> None:
        """Tell committed tokens of a request that has begun."""
        if request_id in self._begun:
            self._tell(lambda: self._drafter.observe(request_id, tokens, accepted))

    def end(self, request_id: str, reason: EndReason) -> None:
        """End a request that has begun."""
        if request_id in self._begun:
            self._begun.discard(request_id)
            self._tell(lambda: self._drafter.end(request_id, reason))

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> list[RowAnswer]:
        """Return one answer per row from a drafter with a plain `propose`."""
        batch, budgets, places = self._of_begun(batch, budgets)
        if not batch:
            return [None] * len(places)
        try:
            answers = self._read(self._drafter.propose(batch, budgets), budgets)
        except BaseException as error:
            _let_the_operator_through(error)
            answers = self._all_failed(error, len(batch))
        return _spread(answers, places)

    async def propose_async(
        self, batch: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[RowAnswer]:
        """Return one answer per row from a drafter whose `propose` is awaited.

        A true cancellation passes. A CancelledError of the drafter's own making is a fault: let
        through, it would look like the daemon's end.
        """
        batch, budgets, places = self._of_begun(batch, budgets)
        if not batch:
            return [None] * len(places)
        try:
            raw = await cast(Awaitable[object], self._drafter.propose(batch, budgets))
            answers = self._read(raw, budgets)
        except GeneratorExit:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            answers = self._all_failed(error, len(batch))
        except BaseException as error:
            _let_the_operator_through(error)
            answers = self._all_failed(error, len(batch))
        return _spread(answers, places)

    def _of_begun(
        self, batch: Sequence[DraftContext], budgets: Sequence[int]
    ) -> tuple[tuple[DraftContext, ...], tuple[int, ...], list[bool]]:
        """Return the rows that have begun, as tuples that a drafter cannot change, and which."""
        places = [row.request_id in self._begun for row in batch]
        if all(places):
            return tuple(batch), tuple(budgets), places
        rows = tuple(row for row, asked in zip(batch, places, strict=True) if asked)
        return rows, tuple(n for n, asked in zip(budgets, places, strict=True) if asked), places

    def _tell(self, call: Callable[[], object]) -> bool:
        try:
            _refuse_awaitable(call())
        except BaseException as error:
            _let_the_operator_through(error)
            self.num_untold += 1
            self._fault(error)
            return False
        return True

    def _read(self, raw: object, budgets: Sequence[int]) -> list[RowAnswer]:
        _refuse_awaitable(raw)
        if not isinstance(raw, Sequence) or isinstance(raw, (str, bytes)):
            raise DrafterFault(f"propose returned {type(raw).__name__}, not a list of answers")
        if len(raw) != len(budgets):
            raise DrafterFault(f"propose returned {len(raw)} answers for {len(budgets)} rows")
        rows: list[RowAnswer] = []
        for answer, budget in zip(raw, budgets, strict=True):
            row = _read_row(answer, budget)
            if isinstance(row, Exception):
                self._fault(row)
            rows.append(row)
        return rows

    def _all_failed(self, error: BaseException, num_rows: int) -> list[RowAnswer]:
        self._fault(error)
        if isinstance(error, Exception):
            return [error] * num_rows
        return [DrafterFault(f"propose raised {type(error).__name__}")] * num_rows

    def _fault(self, error: BaseException) -> None:
        self.num_faults += 1
        if type(error) not in self._logged:
            self._logged.add(type(error))
            _log.warning(
                "drafter %s failed with %s; its requests go on without its drafts, and this kind "
                "of failure is not logged again",
                self.name,
                type(error).__name__,
                exc_info=error,
            )


def _let_the_operator_through(error: BaseException) -> None:
    # Python raises the operator's Ctrl-C in the main thread; in another it is the drafter's own.
    if isinstance(error, KeyboardInterrupt):
        if threading.current_thread() is threading.main_thread():
            raise error


def _spread(answers: list[RowAnswer], places: list[bool]) -> list[RowAnswer]:
    if len(answers) == len(places):
        return answers
    given = iter(answers)
    return [next(given) if asked else None for asked in places]


def _refuse_awaitable(value: object) -> None:
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # or Python warns that it was never awaited
        raise DrafterFault("a plain method returned an awaitable; declare propose `async def`")


def _read_row(answer: object, budget: int) -> RowAnswer:
    """Lists and tuples pass untouched; of any other iterable at most budget + 1 ids are copied.

    One id more than fits keeps "too long" visible without trusting an iterable to end. A subclass
    of list or tuple is any other iterable: its methods are the drafter's code.
    """
    if isinstance(answer, Proposal):
        answer = answer.token_ids
    if answer is None or isinstance(answer, Exception):
        return answer
    if type(answer) is list or type(answer) is tuple:
        return answer
    # Arrays: their own conversion gives Python integers.
    to_list = getattr(answer, "tolist", None)
    try:
        if callable(to_list):
            answer = to_list()
        if isinstance(answer, Iterable) and not isinstance(answer, (str, bytes, Mapping, Set)):
            return list(islice(answer, budget + 1))
    except Exception as error:
        return error
    return DrafterFault(f"a row's answer is {type(answer).__name__}, not a list of token ids")
