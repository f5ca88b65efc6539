"""Promises of the loop when readers leave, and when the daemon is full or stops."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence

import pytest

from specd.engine.events import FinishReason
from specd.engine.request import Request
from specd.engine.step_types import PaddedBatch
from specd.errors import (
    DuplicateRequest,
    NotServing,
    OutOfPages,
    QueueFull,
)
from specd.kv.pages import PAGE_SIZE
from tests.support.drafters import PATIENCE_S, OracleDrafter
from tests.support.requests import Answer, make_request
from tests.unit.engine.loop_support import (
    MODEL,
    PACKED,
    RECTANGLE,
    engine_room,
    expected,
    mixed_requests,
    whole_text,
)


def endless(name: str, prompt: Sequence[int] = (1, 2, 3)) -> Request:
    """A request that lives until somebody ends it, for as long as a test runs."""
    return make_request(name, prompt, max_new_tokens=4000, ignore_eos=True)


# --- readers that leave ---


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(12))
async def test_streams_that_are_cut_at_random_do_not_change_the_others(seed: int) -> None:
    luck = random.Random(seed)
    requests = mixed_requests(40, drafters=("o",))
    right = {request.request_id: expected(request) for request in requests}
    oracle = OracleDrafter([whole_text(request) for request in requests], size=luck.choice([3, 8]))
    ended: defaultdict[str, set[str]] = defaultdict(set)

    async def meddle(batch: PaddedBatch) -> None:
        if luck.random() < 0.4:
            return
        victim = luck.choice(requests)
        if luck.random() < 0.5:
            if room.engine.abort(victim.request_id):
                ended[victim.request_id].add("aborted")
        else:
            room.engine.cancel(victim.generation)
            ended[victim.request_id].add("cancelled")

    layout = luck.choice([PACKED, RECTANGLE])
    pages = luck.choice([5, 8, 200])
    async with engine_room({"o": oracle}, layout=layout, num_pages=pages, max_rows=6) as room:
        room.device.during = meddle
        answers = dict(zip(right, await room.answers(requests), strict=True))
    assert ended
    for name, answer in answers.items():
        check_survival(answer, right[name], ended[name])


def check_survival(answer: Answer, right: list[int], ended: set[str]) -> None:
    assert answer.error is None
    assert answer.token_ids == right[: len(answer.token_ids)]
    if answer.cut:
        assert "cancelled" in ended
    elif answer.reason is FinishReason.ABORTED:
        assert "aborted" in ended
    else:  # nobody meddled with it, or too late
        assert answer.token_ids == right


@pytest.mark.asyncio
async def test_a_cancelled_stream_delivers_nothing_more_and_its_place_is_free_again() -> None:
    gone = endless("gone")
    async with engine_room(max_rows=1) as room:
        room.during_step(3, lambda: room.engine.cancel(gone.generation))
        room.engine.submit(gone.generation)
        waiting = make_request("next")
        answer = await room.answer(waiting)
        assert gone.output.num_tokens == 2
    assert answer.token_ids == expected(make_request("next"))


@pytest.mark.asyncio
async def test_cancelling_a_request_that_has_ended_is_harmless() -> None:
    first = make_request("a")
    async with engine_room() as room:
        await room.answer(first)
        room.engine.cancel(first.generation)
        answer = await room.answer(make_request("a"))
    assert answer.token_ids == expected(make_request("a"))


@pytest.mark.asyncio
async def test_an_abort_behind_a_cancel_delivers_nothing_either() -> None:
    gone = endless("gone")

    def both() -> None:
        room.engine.cancel(gone.generation)
        assert room.engine.abort("gone")

    async with engine_room() as room:
        room.during_step(3, both)
        answer = await room.answer(gone)
    assert answer.cut


@pytest.mark.asyncio
async def test_waiting_for_idleness_waits_for_a_request_that_came_after_an_idle_time() -> None:
    async with engine_room() as room:
        await room.answer(make_request("first"))
        await room.engine.wait_idle()
        second = make_request("second")
        room.engine.submit(second.generation)
        await room.engine.wait_idle()
        assert second.output.tokens_left == 0


@pytest.mark.asyncio
async def test_an_aborted_stream_ends_cleanly_at_the_step_that_runs() -> None:
    request = endless("a")
    async with engine_room() as room:
        room.during_step(4, lambda: room.engine.abort("a"))
        answer = await room.answer(request)
    assert answer.reason is FinishReason.ABORTED
    assert answer.token_ids == MODEL.continuation(0, [1, 2, 3], 3)


@pytest.mark.asyncio
async def test_an_abort_finds_a_request_whose_prompt_is_not_ready() -> None:
    async with engine_room() as room:
        with room.engine.expecting("early"):
            assert room.engine.abort("early")
            answer = await room.answer(endless("early"))
        assert answer.reason is FinishReason.ABORTED
        assert answer.token_ids == []
        assert not room.engine.abort("early")


@pytest.mark.asyncio
async def test_an_expected_id_is_taken_until_it_comes_to_nothing() -> None:
    async with engine_room(max_rows=1, max_waiting=0) as room:
        with room.engine.expecting("a"):
            with pytest.raises(DuplicateRequest), room.engine.expecting("a"):
                pass
        answer = await room.answer(make_request("a"))
        assert answer.error is None


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["", "req", "req-", "req-1", "REQ-10", "req-100"])
async def test_an_abort_of_another_id_reaches_nobody(name: str) -> None:
    request = make_request("req-10", max_new_tokens=20, ignore_eos=True)
    right = expected(request)
    async with engine_room() as room:
        found: list[bool] = []
        room.during_step(2, lambda: found.append(room.engine.abort(name)))
        answer = await room.answer(request)
    assert found == [False]
    assert answer.token_ids == right


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["abort", "cancel"])
async def test_a_request_can_end_while_it_waits(way: str) -> None:
    async with engine_room(max_rows=1) as room:
        runs, waits = endless("runs"), make_request("waits")
        stream = room.start(runs)
        await asyncio.sleep(0)
        waiting = room.start(waits)
        if way == "abort":
            assert room.engine.abort("waits")
        else:
            room.engine.cancel(waits.generation)
        answer = await asyncio.wait_for(waiting, PATIENCE_S)
        assert not stream.done()
        room.engine.abort("runs")
    assert answer.token_ids == []
    if way == "abort":
        assert answer.reason is FinishReason.ABORTED
    else:
        assert answer.events == []


@pytest.mark.asyncio
async def test_a_request_can_end_while_it_waits_after_preemption() -> None:
    old = make_request("old", [1] * 30, max_new_tokens=30, ignore_eos=True)
    young = endless("young", prompt=[2] * 20)
    right = expected(old)
    async with engine_room(num_pages=2) as room:

        async def cancel_when_preempted(batch: PaddedBatch) -> None:
            if young.admitted and young.slot is None:
                room.engine.cancel(young.generation)

        room.device.during = cancel_when_preempted
        answers = await room.answers([old, young])
    assert answers[0].token_ids == right
    assert young.generation.end_cause is not None


@pytest.mark.asyncio
async def test_the_same_prompt_again_after_a_cancel_mid_step_equals_a_fresh_one() -> None:
    first, again = endless("first"), make_request("again", max_new_tokens=20)
    right = expected(again)
    oracle = OracleDrafter([whole_text(again)])
    async with engine_room({"o": oracle}) as room:
        room.during_step(5, lambda: room.engine.cancel(first.generation))
        await room.answer(first)
        answer = await room.answer(again)
    assert answer.token_ids == right


@pytest.mark.asyncio
async def test_an_engine_that_stops_ends_every_stream_with_not_serving() -> None:
    async with engine_room(max_rows=1) as room:
        streams = [room.start(endless("runs")), room.start(make_request("waits"))]
        room.during_step(3, room.running.cancel)
        answers = await asyncio.wait_for(asyncio.gather(*streams), PATIENCE_S)
        with pytest.raises(NotServing):
            room.engine.submit(make_request("late").generation)
        await asyncio.wait_for(room.engine.wait_idle(), PATIENCE_S)
    assert [type(answer.error) for answer in answers] == [NotServing, NotServing]


@pytest.mark.asyncio
async def test_a_draining_engine_refuses_new_requests_and_finishes_the_others() -> None:
    request = make_request("a", max_new_tokens=20, ignore_eos=True)
    right = expected(request)
    async with engine_room() as room:
        stream = room.start(request)
        room.engine.refuse_new("draining")
        with pytest.raises(NotServing, match="draining"):
            room.engine.submit(make_request("b").generation)
        await room.engine.wait_idle()
        assert (await stream).token_ids == right


@pytest.mark.asyncio
async def test_aborting_all_ends_every_stream_cleanly() -> None:
    async with engine_room(max_rows=2) as room:
        room.during_step(3, room.engine.abort_all)
        answers = await room.answers([endless(name) for name in "abcd"])
    assert {answer.reason for answer in answers} == {FinishReason.ABORTED}


# --- a full daemon ---


@pytest.mark.asyncio
async def test_a_request_beyond_the_queue_is_refused_and_the_others_live() -> None:
    requests = [make_request(name) for name in "abcd"]
    right = [expected(request) for request in requests]
    async with engine_room(max_rows=2, max_waiting=2) as room:
        streams = [room.start(request) for request in requests]
        with pytest.raises(QueueFull):
            room.engine.submit(make_request("e").generation)
        answers = await asyncio.gather(*streams)
        again = await room.answer(make_request("e"))
    assert [answer.token_ids for answer in answers] == right
    assert again.error is None


@pytest.mark.asyncio
async def test_an_id_in_use_is_refused_and_its_stream_goes_on() -> None:
    request = make_request("a", max_new_tokens=20, ignore_eos=True)
    right = expected(request)
    refused: list[Exception] = []

    def again() -> None:
        with pytest.raises(DuplicateRequest) as raised:
            room.engine.submit(make_request("a").generation)
        refused.append(raised.value)

    async with engine_room() as room:
        room.during_step(2, again)
        answer = await room.answer(request)
    assert len(refused) == 1
    assert answer.token_ids == right


@pytest.mark.asyncio
async def test_a_prompt_larger_than_the_pool_is_refused_at_once() -> None:
    async with engine_room(num_pages=1) as room:
        with pytest.raises(OutOfPages):
            room.engine.submit(make_request("a", [1] * PAGE_SIZE).generation)
