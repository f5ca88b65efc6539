"""The draft room: asks all drafters of a step at once and gives each row one draft.

Knows sessions, chains and the deadline of a step; knows nothing of models, pages or padding, and
judges no token. Its values are raw: the padding stage checks ids and lengths.
Invariant: whatever a drafter does, `collect` returns one `Draft` per ask, in order, within the
deadline, as far as code that is awaited gives way when cancelled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio

from drafters.contract import DraftContext, Drafter, EndReason, SamplingHint, TokenView
from specd.engine.drafter_host import DrafterHost, DrafterStatistics
from specd.engine.guest import RowAnswer

__all__ = ["Draft", "DraftAsk", "Drafting", "DrafterStatistics", "step_deadline_s"]

# Timers of the event loop are true to about 0.2 ms; a shorter deadline would be none at all.
MIN_DEADLINE_S = 0.001
SHARE_OF_STEP = 0.1
CLOSE_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class DraftAsk:
    """A row that wants a draft.

    tokens: committed ids; the list may grow later, its length now is the base of the draft.
    budget: how many draft tokens can be used, above 0. drafters: the chain, preferred first.
    grant_s: the deadline that the request grants, None for the daemon's own.
    """

    request_id: str
    tokens: Sequence[int]
    budget: int
    drafters: tuple[str, ...]
    grant_s: float | None


@dataclass(frozen=True, slots=True)
class Draft:
    """What a row gets.

    token_ids: as the drafter gave them, None if no drafter gave any. drafter: who gave them.
    draft_time_s: from the start of the step's drafting to the last answer that the row needed.
    late, faults: drafters of the row that missed the deadline, and those that raised or answered
    in a wrong shape.
    """

    token_ids: Sequence[int] | None
    drafter: str | None
    draft_time_s: float
    late: tuple[str, ...]
    faults: tuple[str, ...]


@dataclass(slots=True)
class _Row:
    """A row while its answers come in."""

    ask: DraftAsk
    context: DraftContext
    pending: set[str] = field(default_factory=set)
    answers: dict[str, RowAnswer] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    waited_s: float = 0.0

    def is_served_before(self, drafter: str) -> bool:
        """Return whether a drafter that comes earlier in the chain has given tokens."""
        for name in self.ask.drafters:
            if name == drafter:
                return False
            if _has_tokens(self.answers.get(name)):
                return True
        return False

    @property
    def is_decided(self) -> bool:
        """True once no answer that is still out could change the row's draft."""
        for name in self.ask.drafters:
            if name in self.pending:
                return False
            if _has_tokens(self.answers.get(name)):
                return True
        return True

    def draft(self) -> Draft:
        """Return the first draft with tokens in the order of the chain."""
        faults = tuple(n for n, answer in self.answers.items() if isinstance(answer, Exception))
        late = tuple(self.late)
        for name in self.ask.drafters:
            answer = self.answers.get(name)
            if isinstance(answer, (list, tuple)) and answer:
                return Draft(answer, name, self.waited_s, late, faults)
        return Draft(None, None, self.waited_s, late, faults)


@dataclass(slots=True)
class _Call:
    """A call to a drafter that has to be awaited, with the rows that need it."""

    host: DrafterHost
    rows: list[_Row]
    has_answered: bool = False


def step_deadline_s(
    step_time_s: float, grants_s: Iterable[float | None], max_deadline_s: float
) -> float:
    """Return the one deadline of a step: the longest that any of its waiting rows has.

    A row has what its request grants, else a tenth of the step time, at most `max_deadline_s`;
    nothing is shorter than 1 ms. So a row without a grant can wait longer than the daemon's own
    deadline only beside a row whose request grants more.
    """
    own_s = min(max_deadline_s, SHARE_OF_STEP * step_time_s)
    longest_s = max((own_s if grant is None else grant for grant in grants_s), default=own_s)
    return max(MIN_DEADLINE_S, longest_s)


class Drafting:
    """The drafters of the daemon, their sessions, and the one wait of a step."""

    def __init__(
        self,
        drafters: Mapping[str, Drafter],
        *,
        clock: Callable[[], float] = time.perf_counter,
        max_deadline_s: float = 0.005,
    ) -> None:
        self._clock = clock
        self._max_deadline_s = max_deadline_s
        self._hosts = {name: DrafterHost(name, guest, clock) for name, guest in drafters.items()}
        self._chains: dict[str, tuple[str, ...]] = {}

    @property
    def sessions(self) -> int:
        """Open sessions: one for each live request and each drafter that was told of it."""
        return sum(host.num_sessions for host in self._hosts.values())

    def begin(
        self,
        request_id: str,
        prompt: Sequence[int],
        sampling: SamplingHint,
        chain: tuple[str, ...],
    ) -> None:
        """Start a session with every drafter of the chain. `prompt` never changes, or only grows.

        Raises: ValueError for an id that is live, KeyError for a drafter that does not exist.
        """
        if request_id in self._chains:
            raise ValueError(f"request {request_id!r} has drafter sessions already")
        hosts = [self._hosts[name] for name in dict.fromkeys(chain)]
        self._chains[request_id] = chain
        view = TokenView(prompt)
        for host in hosts:
            host.begin(request_id, view, sampling)

    def observe(
        self, request_id: str, tokens: Sequence[int], accepted: int, maker: str | None
    ) -> None:
        """Tell committed tokens to the request's drafters, and `accepted` to the draft's maker."""
        told = tuple(tokens)
        for name in dict.fromkeys(self._chains.get(request_id, ())):
            self._hosts[name].observe(request_id, told, accepted if name == maker else 0)

    def end(self, request_id: str, reason: EndReason) -> None:
        """End the request's sessions; an id without any is fine."""
        for name in dict.fromkeys(self._chains.pop(request_id, ())):
            self._hosts[name].end(request_id, reason)

    async def collect(self, asks: Sequence[DraftAsk], *, step_time_s: float) -> tuple[Draft, ...]:
        """Return one draft per ask, in order, waiting for at most the step's deadline.

        Inline drafters are asked first; a row that they have served is not sent to drafters that
        come later in its chain, and the wait ends as soon as every row has its draft.
        """
        started = self._clock()
        for host in self._hosts.values():
            host.settle()
        rows = [_Row(ask, DraftContext(ask.request_id, TokenView(ask.tokens))) for ask in asks]
        asked = self._allowed_rows(rows)
        for host, wanting in asked:
            if host.is_inline:
                self._ask_inline(host, wanting, started)
        calls = self._open_calls(asked)
        if calls:
            await self._wait(calls, started, step_time_s)
        return tuple(row.draft() for row in rows)

    def report_fault(self, drafter: str) -> None:
        """Tell that the last draft of `drafter` had illegal ids: the call was no success."""
        self._hosts[drafter].report_illegal()

    def statistics(self) -> Mapping[str, DrafterStatistics]:
        """Return the counters of every drafter by name."""
        return {name: host.statistics() for name, host in self._hosts.items()}

    async def aclose(self) -> None:
        """End all sessions and threads; a thread that is stuck is left behind after a second."""
        self._chains.clear()
        hosts = list(self._hosts.values())
        for host in hosts:
            host.end_all()
        try:
            async with anyio.create_task_group() as group:
                for host in hosts:
                    group.start_soon(host.drained, CLOSE_PATIENCE_S)
        finally:  # also where the caller is being cancelled, and no task above ever started
            for host in hosts:
                host.close()

    def _allowed_rows(self, rows: list[_Row]) -> list[tuple[DrafterHost, list[_Row]]]:
        """Return the drafters that may be asked, with the rows whose chain names them."""
        wanting: dict[str, list[_Row]] = {}
        for row in rows:
            for name in dict.fromkeys(row.ask.drafters):
                if self._hosts[name].knows(row.ask.request_id):
                    wanting.setdefault(name, []).append(row)
        hosts = ((host, wanting.get(name)) for name, host in self._hosts.items())
        return [(host, some) for host, some in hosts if some and host.allows()]

    def _ask_inline(self, host: DrafterHost, wanting: list[_Row], started: float) -> None:
        rows = [row for row in wanting if not row.is_served_before(host.name)]
        if not rows:
            return
        asked_at = self._clock()
        answers = host.ask_now(*_question(rows))
        now = self._clock()
        host.answered(answers, now - asked_at)
        for row, answer in zip(rows, answers, strict=True):
            row.answers[host.name] = answer
            row.waited_s = now - started

    def _open_calls(self, asked: list[tuple[DrafterHost, list[_Row]]]) -> list[_Call]:
        """Return the calls to await, for the rows that still need them."""
        calls: list[_Call] = []
        for host, wanting in asked:
            if host.is_inline:
                continue
            rows = [row for row in wanting if not row.is_served_before(host.name)]
            if rows and host.is_stuck:
                host.missed(0.0)
                for row in rows:
                    row.late.append(host.name)
            elif rows:
                for row in rows:
                    row.pending.add(host.name)
                calls.append(_Call(host, rows))
        return calls

    async def _wait(self, calls: list[_Call], started: float, step_time_s: float) -> None:
        asked_at = self._clock()
        grants_s = (row.ask.grant_s for call in calls for row in call.rows)
        deadline_s = step_deadline_s(step_time_s, grants_s, self._max_deadline_s)
        enough = False

        async def ask(call: _Call) -> None:
            nonlocal enough
            answers = await call.host.ask(*_question(call.rows))
            if scope.cancel_called:  # it swallowed its cancellation
                call.host.came_late()
                return
            now = self._clock()
            call.has_answered = True
            call.host.answered(answers, now - asked_at)
            for row, answer in zip(call.rows, answers, strict=True):
                row.pending.discard(call.host.name)
                row.answers[call.host.name] = answer
                row.waited_s = now - started
            if any(not other.has_answered for other in calls):
                enough = all(row.is_decided for other in calls for row in other.rows)
                if enough:
                    scope.cancel()

        with anyio.move_on_after(deadline_s) as scope:
            async with anyio.create_task_group() as group:
                for call in calls:
                    group.start_soon(ask, call)
        if not enough:
            self._mark_late(calls, started, asked_at)

    def _mark_late(self, calls: list[_Call], started: float, asked_at: float) -> None:
        now = self._clock()
        for call in calls:
            if not call.has_answered:
                call.host.missed(now - asked_at)
                for row in call.rows:
                    row.late.append(call.host.name)
                    row.waited_s = now - started


def _question(rows: list[_Row]) -> tuple[list[DraftContext], list[int]]:
    return [row.context for row in rows], [row.ask.budget for row in rows]


def _has_tokens(answer: RowAnswer) -> bool:
    return isinstance(answer, (list, tuple)) and bool(answer)
