"""Promises of the loop when a step raises, or a row of it is not finite."""

from __future__ import annotations

import pytest

from specd.engine.events import FinishReason
from specd.engine.step_types import LayoutSpec, PaddedBatch
from specd.errors import DeviceLost, NonFiniteLogits, NotServing, StepFailed
from tests.support.drafters import InlineDrafter
from tests.support.null_device import ALPHABET
from tests.support.requests import make_request
from tests.unit.engine.loop_support import (
    PACKED,
    RECTANGLE,
    engine_room,
    expected,
    mixed_requests,
)


class Broken(Exception):
    """What a device raises."""


@pytest.mark.asyncio
@pytest.mark.parametrize("layout", [PACKED, RECTANGLE], ids=["packed", "rectangle"])
async def test_a_step_that_raises_ends_its_own_requests_and_no_other(
    layout: LayoutSpec, caplog: pytest.LogCaptureFixture
) -> None:
    requests = [make_request(f"r{n}", [n], max_new_tokens=9, ignore_eos=True) for n in range(8)]
    right = [expected(request) for request in requests]
    oracle = InlineDrafter()
    held: list[str] = []

    async def fail_once(batch: PaddedBatch) -> None:
        if len(room.device.batches) == 3:
            held.extend(row.request_id for row in batch.rows)
            raise Broken

    async with engine_room({"o": oracle}, layout=layout, max_rows=3) as room:
        room.device.during = fail_once
        answers = await room.answers(requests)
        later = await room.answer(make_request("later"))
    failed = [f"r{n}" for n, answer in enumerate(answers) if answer.error is not None]
    assert failed == held == ["r0", "r1", "r2"]
    assert {type(answer.error) for answer in answers[:3]} == {StepFailed}
    assert [answer.token_ids for answer in answers[3:]] == right[3:]
    assert later.token_ids == expected(make_request("later"))
    assert "Broken" in caplog.text


@pytest.mark.asyncio
async def test_a_lost_device_ends_every_stream_and_the_loop() -> None:
    async def lose(batch: PaddedBatch) -> None:
        if len(room.device.batches) == 3:
            room.device.lost = True
            raise Broken

    requests = [make_request(f"r{n}", [n], max_new_tokens=9, ignore_eos=True) for n in range(3)]
    async with engine_room(max_rows=2) as room:
        room.device.during = lose
        answers = await room.answers(requests)
        with pytest.raises(DeviceLost, match="the device is gone"):
            await room.running
        with pytest.raises(NotServing, match="the device is lost"):
            room.engine.submit(make_request("later").generation)
    assert [type(answer.error) for answer in answers] == [StepFailed, StepFailed, NotServing]
    assert str(answers[2].error) == "not serving: the device is lost"


@pytest.mark.asyncio
async def test_a_running_request_that_was_not_in_the_failed_step_lives() -> None:
    long = [make_request(f"long{n}", [n] * 60, max_new_tokens=3, ignore_eos=True) for n in (1, 2)]
    right = expected(long[1])

    async def fail_first(batch: PaddedBatch) -> None:
        if len(room.device.batches) == 1:
            assert [row.request_id for row in batch.rows] == ["long1"]
            assert long[1].slot is not None
            raise Broken

    async with engine_room(max_positions=16) as room:
        room.device.during = fail_first
        answers = await room.answers(long)
    assert isinstance(answers[0].error, StepFailed)
    assert answers[1].token_ids == right


@pytest.mark.asyncio
async def test_a_row_that_is_not_finite_ends_alone_and_shows_none_of_that_step() -> None:
    requests = mixed_requests(8)
    right = [expected(request) for request in requests]
    async with engine_room() as room:
        room.during_step(4, lambda: room.device.poisoned.add("r2"))
        answers = await room.answers(requests)
    assert isinstance(answers[2].error, NonFiniteLogits)
    assert answers[2].token_ids == right[2][: len(answers[2].token_ids)]
    del answers[2], right[2]
    assert [answer.token_ids for answer in answers] == right


@pytest.mark.asyncio
async def test_a_stop_that_is_part_of_an_included_stop_token_costs_no_neighbour() -> None:
    odd = make_request(
        "odd", stop_token_ids=set(ALPHABET), stop_strings=("a", "b", "c", " "), include_stop=True
    )
    neighbour = make_request("neighbour", max_new_tokens=20, ignore_eos=True)
    right = expected(neighbour)
    async with engine_room() as room:
        answers = await room.answers([odd, neighbour])
    assert answers[0].reason is FinishReason.STOP_TOKEN
    assert answers[1].token_ids == right
