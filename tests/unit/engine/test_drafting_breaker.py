"""Promises of the draft room about guests that misbehave step after step."""

from __future__ import annotations

import pytest

from specd.engine.breaker import FIRST_COOLDOWN_S, THRESHOLD
from tests.support.drafters import (
    AsyncDrafter,
    BlockingDrafter,
    InlineDrafter,
    Recorder,
    constant,
    raising,
)
from tests.unit.engine.drafting_support import Room, until_free

KINDS: list[type[Recorder]] = [InlineDrafter, AsyncDrafter, BlockingDrafter]


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
