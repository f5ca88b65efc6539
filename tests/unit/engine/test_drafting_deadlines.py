"""Promises of the draft room about guests that are slow, hang, or will not let go."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from drafters.contract import BaseDrafter, DraftContext
from specd.engine import drafter_host, drafting
from specd.engine.drafting import Drafting, step_deadline_s
from tests.support.drafters import (
    PATIENCE_S,
    AsyncDrafter,
    BlockingDrafter,
    InlineDrafter,
    constant,
)
from tests.unit.engine.drafting_support import LONG_S, Room, until, until_free


@pytest.mark.parametrize(
    ("step_time_s", "grants_s", "deadline_s"),
    [
        (0.030, [None], 0.003),
        (0.500, [None], 0.005),
        (0.002, [None], 0.001),
        (0.000, [None], 0.001),
        (0.030, [None, 0.050], 0.050),
        (0.030, [0.020, 0.050], 0.050),
        (0.030, [0.002], 0.002),
        (0.030, [0.002, None], 0.003),
        (0.030, [0.0], 0.001),
        (0.030, [], 0.003),
    ],
)
def test_the_deadline_of_a_step_is_its_longest_with_a_floor_of_one_millisecond(
    step_time_s: float, grants_s: list[float | None], deadline_s: float
) -> None:
    assert step_deadline_s(step_time_s, grants_s, 0.005) == pytest.approx(deadline_s)


@pytest.mark.asyncio
async def test_an_async_sleeper_is_cancelled_at_the_deadline_and_the_others_keep_their_drafts() -> (
    None
):
    sleeper = AsyncDrafter(constant(1), delay_s=LONG_S)
    room = Room(sleeper=sleeper, good=AsyncDrafter(constant(2)), inline=InlineDrafter(constant(3)))
    room.begin("a", "sleeper")
    room.begin("b", "good")
    room.begin("c", "sleeper", "inline")
    started = time.perf_counter()
    drafts = await room.step("a", "b", "c")
    assert time.perf_counter() - started < 1.0
    assert [draft.token_ids for draft in drafts] == [None, [2], [3]]
    assert [draft.late for draft in drafts] == [("sleeper",), (), ("sleeper",)]
    assert sleeper.num_cancelled == 1
    seen = room.drafting.statistics()["sleeper"]
    assert (seen.late, seen.faults, seen.stale) == (1, 0, 0)


@pytest.mark.asyncio
async def test_a_blocking_sleeper_is_abandoned_at_the_deadline() -> None:
    sleeper = BlockingDrafter(lambda batch, budgets: time.sleep(1.0) or [[1]])  # type: ignore[func-returns-value]
    room = Room(sleeper=sleeper, good=AsyncDrafter(constant(2)))
    room.begin("a", "sleeper", "good")
    started = time.perf_counter()
    (draft,) = await room.step("a")
    assert time.perf_counter() - started < 0.5
    assert (draft.token_ids, draft.drafter, draft.late) == ([2], "good", ("sleeper",))
    await room.drafting.aclose()


@pytest.mark.asyncio
async def test_a_request_that_grants_more_is_waited_for() -> None:
    room = Room(slow=AsyncDrafter(constant(1), delay_s=0.05))
    room.begin("a", "slow")
    (draft,) = await room.step("a", grant_s=PATIENCE_S)
    assert draft.token_ids == [1]


@pytest.mark.asyncio
async def test_a_grant_of_a_row_that_needs_no_wait_lets_nobody_wait() -> None:
    room = Room(inline=InlineDrafter(constant(1)), slow=AsyncDrafter(constant(1), delay_s=LONG_S))
    room.begin("a", "inline")
    room.begin("b", "slow")
    asks = [room.ask("a", grant_s=LONG_S), room.ask("b")]
    with anyio.fail_after(PATIENCE_S):
        drafts = await room.drafting.collect(asks, step_time_s=0.0)
    assert [draft.late for draft in drafts] == [(), ("slow",)]


@pytest.mark.asyncio
async def test_a_busy_drafter_is_skipped_without_waiting_and_its_late_answer_is_dropped() -> None:
    drafter = BlockingDrafter(constant(1))
    room = Room(guest=drafter)
    room.begin("a", "guest")
    drafter.gate.clear()
    (first,) = await room.step("a", grant_s=0.5)
    assert drafter.entered.is_set()
    # Were it waited for, this would run into the deadline of a minute.
    with anyio.fail_after(PATIENCE_S):
        (second,) = await room.step("a", grant_s=LONG_S)
    await until_free(room, drafter, "a")
    drafter.script = constant(3)
    third = await room.lasting_step("a")
    assert [first.late, second.late, third.late] == [("guest",), ("guest",), ()]
    assert [first.token_ids, second.token_ids, third.token_ids] == [None, None, [3]]
    assert [e[0] for e in drafter.events].count("propose") == 2
    seen = room.drafting.statistics()["guest"]
    assert (seen.calls, seen.late, seen.stale) == (2, 2, 1)
    await room.drafting.aclose()


@pytest.mark.asyncio
async def test_a_call_given_up_before_its_thread_came_to_it_never_runs() -> None:
    gate = threading.Event()

    class SlowToBegin(BlockingDrafter):
        def begin(self, *args: Any) -> None:
            super().begin(*args)
            assert gate.wait(PATIENCE_S)

    drafter = SlowToBegin(constant(1))
    room = Room(guest=drafter)
    room.begin("a", "guest")
    (draft,) = await room.step("a")
    gate.set()
    await until_free(room, drafter, "a")
    await room.drafting.aclose()
    assert draft.late == ("guest",)
    assert "propose" not in drafter.heard_of("a")
    assert room.drafting.statistics()["guest"].stale == 0


@pytest.mark.asyncio
async def test_an_answer_of_a_drafter_that_swallows_its_cancellation_is_dropped() -> None:
    class Stubborn(BaseDrafter):
        async def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
            try:
                await anyio.sleep(LONG_S)
            except anyio.get_cancelled_exc_class():
                pass
            return [[1]]

    room = Room(guest=Stubborn())
    room.begin("a", "guest")
    (draft,) = await room.step("a")
    assert (draft.token_ids, draft.late) == (None, ("guest",))
    seen = room.drafting.statistics()["guest"]
    assert (seen.draft_tokens, seen.late, seen.stale) == (0, 1, 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("blocking", [False, True])
async def test_the_cancellation_of_the_daemon_passes_through(blocking: bool) -> None:
    inside = asyncio.Event()

    class Waiting(AsyncDrafter):
        async def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
            inside.set()
            return await super().propose(batch, budgets)

    hanging = BlockingDrafter(constant(1))
    hanging.gate.clear()
    room = Room(guest=hanging if blocking else Waiting(delay_s=LONG_S))
    room.begin("a", "guest")
    step = asyncio.create_task(room.step("a", grant_s=LONG_S))
    await (until(hanging.entered) if blocking else inside.wait())
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    seen = room.drafting.statistics()["guest"]
    assert (seen.late, seen.faults) == (0, 0)
    hanging.gate.set()
    await room.drafting.aclose()


@pytest.mark.asyncio
async def test_a_daemon_cancelled_by_a_scope_ends_there_and_nowhere_before() -> None:
    room = Room(guest=AsyncDrafter(delay_s=LONG_S))
    room.begin("a", "guest")
    with anyio.move_on_after(0.02) as scope:
        await room.step("a", grant_s=LONG_S)
        raise AssertionError("the step must not outlive the scope around it")
    assert scope.cancelled_caught


@pytest.mark.asyncio
async def test_a_stuck_drafter_loses_its_requests_instead_of_hoarding_their_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drafter_host, "MAX_BACKLOG", 10)
    drafter = BlockingDrafter(constant(1))
    room = Room(guest=drafter)
    room.begin("a", "guest")
    drafter.gate.clear()
    await room.step("a", grant_s=0.5)
    for _ in range(100):
        room.commit("a", [5])
    assert room.drafting.sessions == 0
    room.begin("b", "guest")
    assert room.drafting.sessions == 0
    drafter.gate.set()
    await room.drafting.aclose()
    assert len(drafter.events) < 20
    assert drafter.events[-1] == ("end", "a", "failed")
    assert drafter.heard_of("b") == []


@pytest.mark.asyncio
@pytest.mark.parametrize("cancelled", [False, True])
async def test_closing_ends_every_session_and_every_thread_even_while_being_cancelled(
    cancelled: bool,
) -> None:
    blocking, inline = BlockingDrafter(), InlineDrafter()
    room = Room(blocking=blocking, inline=inline)
    threads = [thread for thread in threading.enumerate() if thread.name == "drafter-blocking"]
    room.begin("a", "blocking", "inline")
    with anyio.CancelScope() as scope:
        if cancelled:
            scope.cancel()
        await room.drafting.aclose()
    await room.drafting.aclose()
    for thread in threads:
        await asyncio.to_thread(thread.join, PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert blocking.heard_of("a") == ["begin", "observe", "end"]
    assert inline.heard_of("a") == ["begin", "observe", "end"]


@pytest.mark.asyncio
async def test_closing_does_not_wait_for_a_thread_that_is_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drafting, "CLOSE_PATIENCE_S", 0.01)
    drafter = BlockingDrafter()
    drafter.gate.clear()
    room = Room(guest=drafter)
    room.begin("a", "guest")
    await room.step("a", grant_s=0.5)
    with anyio.fail_after(PATIENCE_S / 2):
        await room.drafting.aclose()
    drafter.gate.set()


@pytest.mark.asyncio
async def test_a_room_without_drafters_gives_empty_drafts() -> None:
    room = Room()
    room.begin("a")
    (draft,) = await room.step("a")
    assert (draft.token_ids, draft.drafter) == (None, None)
    await Drafting({}).aclose()
