"""Promises of the draft room about guests that raise, lie, sleep and hang."""

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
from specd.engine.breaker import FIRST_COOLDOWN_S, THRESHOLD
from specd.engine.drafting import Drafting
from tests.support.drafters import (
    PATIENCE_S,
    AsyncDrafter,
    BlockingDrafter,
    InlineDrafter,
    Recorder,
    Script,
    constant,
    raising,
)
from tests.unit.engine.drafting_support import LONG_S, Room, until, until_free

KINDS: list[type[Recorder]] = [InlineDrafter, AsyncDrafter, BlockingDrafter]


def answering(answers: Any) -> Script:
    return lambda batch, budgets: answers


# Shapes and exceptions


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "script",
    [
        raising(ValueError("broken")),
        raising(SystemExit(1)),
        raising(asyncio.CancelledError()),
        raising(TimeoutError()),
        raising(StopIteration()),
        answering(None),
        answering(5),
        answering("ab"),
        answering({0: [1], 1: [1]}),
        answering([[1]]),
        answering([[1], [1], [1]]),
        answering([]),
        answering(iter([[1], [1]])),
    ],
    ids=[
        *("ValueError", "SystemExit", "CancelledError", "TimeoutError", "StopIteration"),
        *("None", "int", "str", "dict", "too few", "too many", "no answers", "iterator"),
    ],
)
async def test_a_call_that_fails_is_a_fault_of_its_rows_and_of_no_other(
    kind: type[Recorder], script: Script
) -> None:
    room = Room(guest=kind(script), good=AsyncDrafter(constant(1)))
    for request_id in "ab":
        room.begin(request_id, "guest", "good")
    room.begin("c", "good")
    drafts = await room.patient_step("a", "b", "c")
    assert [draft.token_ids for draft in drafts] == [[1], [1], [1]]
    assert [draft.faults for draft in drafts] == [("guest",), ("guest",), ()]
    assert room.drafting.statistics()["guest"].faults == 1
    await room.drafting.aclose()


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "answer", [7, "text", b"bytes", {1: 2}, {1, 2}, object(), ValueError("this row")]
)
async def test_a_row_with_a_wrong_shape_fails_alone(kind: type[Recorder], answer: Any) -> None:
    room = Room(guest=kind(answering([[1], answer, [3]])))
    for request_id in "abc":
        room.begin(request_id, "guest")
    drafts = await room.patient_step("a", "b", "c")
    assert [draft.token_ids for draft in drafts] == [[1], None, [3]]
    assert [draft.faults for draft in drafts] == [(), ("guest",), ()]
    await room.drafting.aclose()


@pytest.mark.asyncio
async def test_keyboard_interrupt_in_a_drafters_thread_is_a_fault() -> None:
    room = Room(guest=BlockingDrafter(raising(KeyboardInterrupt())))
    room.begin("a", "guest")
    draft = await room.lasting_step("a")
    assert draft.faults == ("guest",)
    await room.drafting.aclose()


@pytest.mark.asyncio
async def test_ctrl_c_during_an_inline_drafter_is_the_operators() -> None:
    room = Room(guest=InlineDrafter(raising(KeyboardInterrupt())))
    room.begin("a", "guest")
    with pytest.raises(KeyboardInterrupt):
        room.step("a").send(None)


@pytest.mark.asyncio
async def test_a_plain_propose_that_returns_a_coroutine_is_a_fault() -> None:
    async def answers() -> list[list[int]]:
        return [[1]]

    room = Room(guest=InlineDrafter(lambda batch, budgets: answers()))
    room.begin("a", "guest")
    (draft,) = await room.step("a")
    assert draft.faults == ("guest",)


@pytest.mark.asyncio
async def test_an_iterable_that_raises_is_a_fault_of_its_row() -> None:
    def broken() -> Any:
        yield 1
        raise ValueError("half way")

    room = Room(guest=InlineDrafter(answering([broken(), [2]])))
    room.begin("a", "guest")
    room.begin("b", "guest")
    drafts = await room.step("a", "b")
    assert [draft.faults for draft in drafts] == [("guest",), ()]


@pytest.mark.asyncio
async def test_a_drafter_cannot_change_what_it_is_asked() -> None:
    def vandal(batch: Any, budgets: Any) -> Any:
        batch.clear()
        return [[1], [1]]

    room = Room(vandal=InlineDrafter(vandal), good=InlineDrafter(constant(2)))
    for request_id in "ab":
        room.begin(request_id, "good", "vandal")
    drafts = await room.step("a", "b")
    assert [draft.token_ids for draft in drafts] == [[2], [2]]
    assert [draft.faults for draft in drafts] == [("vandal",), ("vandal",)]


@pytest.mark.asyncio
async def test_a_fault_is_logged_with_its_traceback_once_for_each_kind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    drafter = InlineDrafter(raising(ValueError("first kind")))
    room = Room(guest=drafter)
    room.begin("a", "guest")
    await room.step("a")
    await room.step("a")
    drafter.script = raising(KeyError("second kind"))
    await room.step("a")
    with_traceback = [record for record in caplog.records if record.exc_info]
    assert len(with_traceback) == 2
    assert "first kind" in caplog.text
    assert "second kind" in caplog.text


# Sessions


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_a_drafter_that_fails_in_begin_never_hears_of_the_request_again(
    kind: type[Recorder],
) -> None:
    drafter = kind(constant(1), failing=["begin"])
    room = Room(guest=drafter)
    room.begin("a", "guest")
    draft = await room.lasting_step("a")
    room.drafting.end("a", "finished")
    await room.drafting.aclose()
    assert draft.token_ids is None
    assert drafter.heard_of("a") == ["begin"]
    assert room.drafting.statistics()["guest"].faults == 1
    assert room.drafting.sessions == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_a_row_of_a_failed_begin_does_not_cost_its_neighbours_their_drafts(
    kind: type[Recorder],
) -> None:
    drafter = kind(lambda batch, budgets: [[len(batch)] for _ in batch])
    room = Room(guest=drafter)
    room.begin("a", "guest")
    await room.patient_step("a")  # so that a thread has begun `a` before it starts to fail
    drafter.failing = {"begin"}
    room.begin("b", "guest")
    room.begin("c", "guest")
    drafts = await room.patient_step("b", "a", "c")
    assert [draft.token_ids for draft in drafts] == [None, [1], None]
    await room.drafting.aclose()


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_failures_of_observe_and_end_reach_nobody_and_are_counted(
    kind: type[Recorder],
) -> None:
    drafter = kind(constant(1), failing=["observe", "end"])
    room = Room(guest=drafter)
    room.begin("a", "guest")
    draft = await room.lasting_step("a")
    room.drafting.end("a", "finished")
    await room.drafting.aclose()
    assert draft.token_ids == [1]
    assert room.drafting.statistics()["guest"].faults == 2


@pytest.mark.asyncio
async def test_an_async_begin_is_a_fault() -> None:
    class Wrong(InlineDrafter):
        async def begin(self, *args: Any) -> None:  # type: ignore[override]
            raise AssertionError("never runs")

    room = Room(guest=Wrong(constant(1)))
    room.begin("a", "guest")
    assert room.drafting.statistics()["guest"].faults == 1
    assert room.drafting.sessions == 0


# Deadlines


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
    assert room.drafting.statistics()["sleeper"].late == 1


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
    assert room.drafting.statistics()["guest"].late == 0
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


# The breaker


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_a_drafter_that_keeps_failing_is_asked_no_more_until_a_probe_succeeds(
    kind: type[Recorder],
) -> None:
    drafter = kind(raising(ValueError()))
    room = Room(guest=drafter)
    room.begin("a", "guest")
    for _ in range(THRESHOLD):
        assert (await room.lasting_step("a")).faults == ("guest",)
    assert room.drafting.statistics()["guest"].breaker_open
    drafter.script = constant(1)
    resting = await room.lasting_step("a")
    assert (resting.token_ids, resting.faults, resting.late) == (None, (), ())
    room.clock.now += FIRST_COOLDOWN_S
    assert (await room.lasting_step("a")).token_ids == [1]
    assert not room.drafting.statistics()["guest"].breaker_open
    assert (await room.lasting_step("a")).token_ids == [1]
    assert room.drafting.statistics()["guest"].calls == THRESHOLD + 2
    await room.drafting.aclose()


@pytest.mark.asyncio
async def test_a_probe_that_fails_doubles_the_rest() -> None:
    drafter = InlineDrafter(raising(ValueError()))
    room = Room(guest=drafter)
    room.begin("a", "guest")
    for _ in range(THRESHOLD):
        await room.step("a")
    room.clock.now += FIRST_COOLDOWN_S
    await room.step("a")
    room.clock.now += FIRST_COOLDOWN_S
    await room.step("a")
    assert room.drafting.statistics()["guest"].calls == THRESHOLD + 1
    room.clock.now += FIRST_COOLDOWN_S
    await room.step("a")
    assert room.drafting.statistics()["guest"].calls == THRESHOLD + 2


@pytest.mark.asyncio
async def test_a_hanging_drafter_opens_the_breaker_and_comes_back_when_it_is_free() -> None:
    drafter = BlockingDrafter(constant(1))
    drafter.gate.clear()
    room = Room(guest=drafter)
    room.begin("a", "guest")
    for _ in range(THRESHOLD):
        (draft,) = await room.step("a", grant_s=0.05)
        assert draft.late == ("guest",)
    (resting,) = await room.step("a", grant_s=0.05)
    assert resting.late == ()
    await until_free(room, drafter, "a")
    room.clock.now += FIRST_COOLDOWN_S
    assert (await room.lasting_step("a")).token_ids == [1]
    await room.drafting.aclose()


@pytest.mark.asyncio
async def test_many_bad_rows_in_one_step_are_one_failure() -> None:
    room = Room(guest=InlineDrafter(lambda batch, budgets: [7 for _ in batch]))
    ids = [f"r{i}" for i in range(4 * THRESHOLD)]
    for request_id in ids:
        room.begin(request_id, "guest")
    await room.step(*ids)
    for _ in ids:
        room.drafting.report_fault("guest")
    assert not room.drafting.statistics()["guest"].breaker_open


@pytest.mark.asyncio
async def test_illegal_ids_reported_step_after_step_open_the_breaker() -> None:
    room = Room(guest=InlineDrafter(constant(-1)))
    room.begin("a", "guest")
    for _ in range(THRESHOLD):
        await room.step("a")
        room.drafting.report_fault("guest")
    assert room.drafting.statistics()["guest"].breaker_open
    assert room.drafting.statistics()["guest"].faults == THRESHOLD


@pytest.mark.asyncio
async def test_a_clean_step_between_reports_keeps_the_breaker_closed() -> None:
    room = Room(guest=InlineDrafter(constant(1)))
    room.begin("a", "guest")
    for _ in range(2 * THRESHOLD):
        await room.step("a")
        room.drafting.report_fault("guest")
        await room.step("a")
    assert not room.drafting.statistics()["guest"].breaker_open


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_a_drafter_that_cannot_observe_opens_the_breaker(kind: type[Recorder]) -> None:
    room = Room(guest=kind(constant(1), failing=["observe"]))
    room.begin("a", "guest")
    for _ in range(THRESHOLD + 1):
        await room.patient_step("a")
        room.commit("a", [5])
    assert room.drafting.statistics()["guest"].breaker_open
    await room.drafting.aclose()


@pytest.mark.asyncio
async def test_one_drafters_breaker_is_not_anothers() -> None:
    room = Room(bad=InlineDrafter(raising(ValueError())), good=InlineDrafter(constant(1)))
    room.begin("a", "bad", "good")
    for _ in range(2 * THRESHOLD):
        (draft,) = await room.step("a")
        assert draft.drafter == "good"
    seen = room.drafting.statistics()
    assert (seen["bad"].breaker_open, seen["good"].breaker_open) == (True, False)


# Bounds


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
async def test_closing_ends_every_session_and_every_thread() -> None:
    drafter = BlockingDrafter()
    room = Room(guest=drafter)
    room.begin("a", "guest")
    await room.drafting.aclose()
    await room.drafting.aclose()
    assert drafter.heard_of("a") == ["begin", "observe", "end"]
    for thread in threading.enumerate():
        if thread.name == "drafter-guest":
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


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
