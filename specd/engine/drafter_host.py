"""Where a drafter's calls run, and whether it is asked at all.

Knows a guest, its thread if it has one, its breaker and its counters; knows nothing of rows,
chains or deadlines. Everything here is called on the event loop; a blocking drafter's own calls
run on its thread, in the order in which the loop makes them.
Invariant: at most one `propose` of a drafter is outstanding, and an answer that nobody waits for
any more reaches nobody.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import anyio

from drafters.contract import DraftContext, Drafter, EndReason, SamplingHint
from specd.engine.breaker import Breaker
from specd.engine.guest import Guest, RowAnswer
from specd.threads import DedicatedThread, ThreadClosed

_log = logging.getLogger("specd.drafting")

# Calls that may wait for a stuck thread (a prompt or a run of tokens each) before its requests
# are taken from it: at 64 rows, about a minute and a half of steps of 100 ms.
MAX_BACKLOG = 65_536


@dataclass(frozen=True, slots=True)
class DrafterStatistics:
    """Counters of one drafter since the start.

    calls: propose calls made; rows: rows in them. draft_tokens: as answered, before any check.
    empty: rows answered with nothing. late: steps that went on without its answer, those that it
    slept through included. faults: calls and rows that failed, and drafts with illegal ids.
    stale: answers that came after their step had gone on. time_s: from call to answer or deadline.
    """

    calls: int
    rows: int
    draft_tokens: int
    empty: int
    late: int
    faults: int
    stale: int
    breaker_open: bool
    time_s: float


class DrafterHost:
    """One drafter with its place, its breaker and its counters.

    A step's outcome counts once for the breaker, whatever the number of rows: the first failure
    at once, a success when the next step begins, for the padding stage may still find fault.
    """

    def __init__(self, name: str, drafter: Drafter, clock: Callable[[], float]) -> None:
        self.name = name
        self.is_async = inspect.iscoroutinefunction(drafter.propose)
        self.is_inline = drafter.inline and not self.is_async
        self._thread: DedicatedThread | None = None
        if not self.is_inline and not self.is_async:
            self._thread = DedicatedThread(f"drafter-{name}")
        self._guest = Guest(name, drafter)
        self._breaker = Breaker(name, clock)
        self._sessions: set[str] = set()
        self._verdict: Literal["none", "good", "bad"] = "none"
        self._untold_seen = 0
        self._generation = 0  # of the last call; written by the loop
        self._abandoned = 0  # generations up to here have nobody waiting; written by the loop
        self._in_flight = False  # set by the loop, cleared by the thread
        self._told_overflow = False
        self._calls = self._rows = self._draft_tokens = self._empty = self._late = 0
        self._stale = self._illegal = 0  # stale: written by whoever runs the drafter
        self._time_s = 0.0

    @property
    def num_sessions(self) -> int:
        """Requests that the drafter has been told of and that have not ended."""
        return len(self._sessions)

    def knows(self, request_id: str) -> bool:
        """Return whether the drafter has been told of a live request."""
        return request_id in self._sessions

    def begin(self, request_id: str, prompt: Sequence[int], sampling: SamplingHint) -> None:
        """Start a session; a drafter that fails here is not told of the request again."""
        if self._thread is None:
            if self._guest.begin(request_id, prompt, sampling):
                self._sessions.add(request_id)
        elif not self._overflows(self._thread):
            self._sessions.add(request_id)
            self._thread.post(lambda: self._guest.begin(request_id, prompt, sampling))

    def observe(self, request_id: str, tokens: Sequence[int], accepted: int) -> None:
        """Tell committed tokens to the drafter, if it has a session for the request."""
        if request_id not in self._sessions:
            return
        if self._thread is None:
            self._guest.observe(request_id, tokens, accepted)
        elif self._overflows(self._thread):
            # To skip tokens would break the contract; to end the session does not.
            self.end(request_id, "failed")
        else:
            self._thread.post(lambda: self._guest.observe(request_id, tokens, accepted))

    def end(self, request_id: str, reason: EndReason) -> None:
        """End the session of a request, if there is one."""
        if request_id not in self._sessions:
            return
        self._sessions.discard(request_id)
        if self._thread is None:
            self._guest.end(request_id, reason)
        else:
            self._thread.post(lambda: self._guest.end(request_id, reason))

    def settle(self) -> None:
        """Close the account of the last step: what has found no fault until now is a success."""
        if self._guest.num_untold != self._untold_seen:
            self._untold_seen = self._guest.num_untold
            self._failed()
        if self._verdict == "good":
            self._breaker.success()
        self._verdict = "none"

    def allows(self) -> bool:
        """Return whether the drafter may be asked in this step."""
        return self._breaker.allows()

    @property
    def is_stuck(self) -> bool:
        """True while its thread is still inside a call that was abandoned."""
        return self._in_flight

    def ask_now(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> list[RowAnswer]:
        """Ask an inline drafter."""
        self._asked(len(batch))
        return self._guest.propose(batch, budgets)

    async def ask(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> list[RowAnswer]:
        """Ask any other drafter; cancelling abandons the answer."""
        self._asked(len(batch))
        if self._thread is None:
            return await self._guest.propose_async(batch, budgets)
        return await self._ask_thread(self._thread, batch, budgets)

    def answered(self, answers: Sequence[RowAnswer], time_s: float) -> None:
        """Count an answer that came in time."""
        self._time_s += time_s
        sizes = [len(row) for row in answers if isinstance(row, (list, tuple))]
        self._draft_tokens += sum(sizes)
        failed = sum(isinstance(row, Exception) for row in answers)
        self._empty += len(answers) - failed - sum(map(bool, sizes))
        if failed:
            self._failed()
        elif self._verdict == "none":
            self._verdict = "good"

    def missed(self, time_s: float) -> None:
        """Count a step that went on without the answer."""
        self._late += 1
        self._time_s += time_s
        self._failed()

    def came_late(self) -> None:
        """Count an answer of an awaited drafter that overslept its cancellation."""
        self._stale += 1

    def report_illegal(self) -> None:
        """Count a draft in which the padding stage found illegal ids."""
        self._illegal += 1
        self._failed()

    def statistics(self) -> DrafterStatistics:
        """Return the counters as they are now."""
        return DrafterStatistics(
            calls=self._calls,
            rows=self._rows,
            draft_tokens=self._draft_tokens,
            empty=self._empty,
            late=self._late,
            faults=self._guest.num_faults + self._illegal,
            stale=self._stale,
            breaker_open=self._breaker.is_open and self._verdict != "good",
            time_s=self._time_s,
        )

    def end_all(self) -> None:
        """End every session."""
        for request_id in list(self._sessions):
            self.end(request_id, "cancelled")

    async def drained(self, patience_s: float) -> None:
        """Wait until its thread, if any, has done what it was handed, for `patience_s` at most."""
        if self._thread is not None:
            with anyio.move_on_after(patience_s), suppress(ThreadClosed):
                await self._thread.call(lambda: None)  # behind everything that waits

    def close(self) -> None:
        """Let its thread end behind the work that waits; a stuck one is left behind."""
        if self._thread is not None:
            self._thread.close(0)

    async def _ask_thread(
        self, thread: DedicatedThread, batch: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[RowAnswer]:
        self._generation += 1
        mine = self._generation
        self._in_flight = True

        def work() -> list[RowAnswer]:
            try:
                if self._abandoned >= mine:  # given up while it waited behind other calls
                    return []
                answers = self._guest.propose(batch, budgets)
                if self._abandoned >= mine:
                    self._stale += 1
                return answers
            finally:
                self._in_flight = False

        try:
            return await thread.call(work)
        except BaseException:
            self._abandoned = mine
            raise

    def _asked(self, num_rows: int) -> None:
        self._calls += 1
        self._rows += num_rows

    def _failed(self) -> None:
        if self._verdict != "bad":
            self._verdict = "bad"
            self._breaker.failure()

    def _overflows(self, thread: DedicatedThread) -> bool:
        if thread.backlog < MAX_BACKLOG:
            return False
        if not self._told_overflow:
            self._told_overflow = True
            _log.warning(
                "drafter %s: %d calls wait for its thread; its requests are taken from it",
                self.name,
                thread.backlog,
            )
        return True
