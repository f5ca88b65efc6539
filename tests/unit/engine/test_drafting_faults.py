"""Promises of the draft room about guests that raise, or answer in a wrong shape."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.drafters import (
    AsyncDrafter,
    BlockingDrafter,
    InlineDrafter,
    Recorder,
    Script,
    constant,
    raising,
)
from tests.unit.engine.drafting_support import Room

KINDS: list[type[Recorder]] = [InlineDrafter, AsyncDrafter, BlockingDrafter]


def answering(answers: Any) -> Script:
    return lambda batch, budgets: answers


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

    room = Room(guest=Wrong(constant(1)))  # type: ignore[arg-type]
    room.begin("a", "guest")
    assert room.drafting.statistics()["guest"].faults == 1
    assert room.drafting.sessions == 0
