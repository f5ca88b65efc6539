"""Promises of the log probabilities of a prompt: all of them, first, and once."""

from __future__ import annotations

import pytest

from specd.engine.events import Finished, FinishReason, SequenceFinished, Started
from specd.engine.request import Request
from specd.engine.scheduler import MAX_SCORED
from specd.engine.step_types import LayoutSpec, PaddedBatch, TokenLogprob
from specd.errors import NonFiniteLogits, StepFailed
from tests.support.drafters import OracleDrafter
from tests.support.requests import make_request
from tests.unit.engine.loop_support import (
    MODEL,
    PACKED,
    RECTANGLE,
    Room,
    engine_room,
    expected,
    mixed_requests,
    whole_text,
)

LAYOUTS = pytest.mark.parametrize("layout", [PACKED, RECTANGLE], ids=["packed", "rectangle"])


def scored(name: str = "a", length: int = 100, top: int = 2, **options: object) -> Request:
    prompt = [7 + place % 5 for place in range(length)]
    return make_request(name, prompt, prompt_logprobs=top, ignore_eos=True, **options)  # type: ignore[arg-type]


def right_scores(request: Request) -> tuple[TokenLogprob, ...]:
    prompt = request.tokens[: request.num_prompt_tokens]
    return tuple(MODEL.prompt_logprobs(prompt, request.params.output.prompt_logprobs or 0))


def scored_positions(room: Room, name: str) -> list[int]:
    """Positions whose log probabilities were computed, in order."""
    return [
        row.first_position + n
        for batch in room.device.batches
        for row in batch.rows
        if row.request_id == name
        for n in range(len(row.score_targets))
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("length", [1, 2, 3, 15, 16, 17, 64, 65, 100])
@pytest.mark.parametrize("top", [0, 2])
@LAYOUTS
async def test_every_prompt_token_has_one_before_the_first_token(
    length: int, top: int, layout: LayoutSpec
) -> None:
    request = scored(length=length, top=top)
    right = right_scores(request)
    assert len(right) == length
    assert right[0] == TokenLogprob(7, None, None)
    async with engine_room(max_positions=16, layout=layout) as room:
        answer = await room.answer(request)
        assert scored_positions(room, "a") == list(range(length - 1))
    assert answer.started.prompt_logprobs == right
    assert answer.token_ids == expected(scored(length=length, top=top))


@pytest.mark.asyncio
@LAYOUTS
async def test_neighbours_and_preemption_change_neither_scores_nor_tokens(
    layout: LayoutSpec,
) -> None:
    requests = [scored(f"s{n}", 30 + n, drafters=("o",), max_new_tokens=20) for n in range(4)]
    neighbours = mixed_requests(12, drafters=("o",), longest=50)
    everyone = [one for group in zip(requests, neighbours[::3], strict=True) for one in group]
    everyone += [one for n, one in enumerate(neighbours) if n % 3]
    right = [expected(one) for one in everyone]
    scores = [right_scores(one) for one in requests]
    oracle = OracleDrafter([whole_text(one) for one in everyone], size=3)
    async with engine_room({"o": oracle}, num_pages=5, max_rows=6, layout=layout) as room:
        answers = await room.answers(everyone)
        assert room.num_preemptions() > 0
        wasted = room.engine.waste.pad_positions
    assert [answer.token_ids for answer in answers] == right
    assert [answer.started.prompt_logprobs for answer in answers[:8:2]] == scores
    charged = sum(answer.finished.speculation.total.pad_positions for answer in answers)
    assert charged == wasted


@pytest.mark.asyncio
async def test_a_preemption_before_the_last_score_begins_them_anew() -> None:
    old = make_request("old", [1] * 30, max_new_tokens=30, ignore_eos=True)
    young = scored("young", 60)
    right = expected(old), expected(young), right_scores(young)
    async with engine_room(num_pages=3, max_positions=8) as room:
        answers = await room.answers([old, young])
        positions = scored_positions(room, "young")
    assert (answers[0].token_ids, answers[1].token_ids) == right[:2]
    assert answers[1].started.prompt_logprobs == right[2]
    again = positions.index(0, 1)  # it began a second time
    assert again < 59
    assert positions[again:] == list(range(59))


@pytest.mark.asyncio
async def test_a_request_that_resumes_is_not_scored_again() -> None:
    old = make_request("old", [1] * 20, max_new_tokens=50, ignore_eos=True)
    young = scored("young", 20, max_new_tokens=40)
    right = expected(young)
    async with engine_room(num_pages=3) as room:
        answers = await room.answers([old, young])
        assert room.num_preemptions() > 0
        assert scored_positions(room, "young") == list(range(19))
    assert answers[1].token_ids == right


@pytest.mark.asyncio
async def test_the_first_of_several_sequences_alone_scores_the_prompt() -> None:
    request = scored(num_sequences=3, max_new_tokens=9)
    right, scores = [expected(one) for one in request.generation.sequences], right_scores(request)
    names = [one.request_id for one in request.generation.sequences]
    async with engine_room(max_positions=48) as room:
        answer = await room.answer(request)
        found = [scored_positions(room, name) for name in names]
    assert found == [list(range(99)), [], []]
    assert answer.started.prompt_logprobs == scores
    assert [answer.sequence(n).token_ids for n in range(3)] == right


@pytest.mark.asyncio
async def test_a_step_scores_so_many_positions_at_most_and_the_rest_goes_to_others() -> None:
    layout = LayoutSpec((1, 2, 4, 8, 16, 32, 64, 128, 256))
    many = [scored(f"s{n}", 150) for n in range(3)]
    other = make_request("other", [1] * 150, ignore_eos=True)
    scores = right_scores(many[0])
    async with engine_room(layout=layout, max_positions=256, max_rows=8) as room:
        answers = await room.answers([*many, other])
        sizes = [sum(len(row.score_targets) for row in b.rows) for b in room.device.batches]
        assert max(sizes) == MAX_SCORED
        assert [row.count for row in room.device.batches[0].rows] == [MAX_SCORED, 150]
    assert [answer.started.prompt_logprobs for answer in answers] == [*[scores] * 3, ()]


@pytest.mark.asyncio
async def test_the_queue_time_of_a_scored_request_ends_with_its_admission() -> None:
    now = 0.0

    async def later(batch: PaddedBatch) -> None:
        nonlocal now
        now += 5.0

    async with engine_room(max_positions=16, clock=lambda: now) as room:
        room.device.during = later
        answer = await room.answer(scored())
    assert answer.started.queue_time_s == 0.0


# --- streams that end before ---


@pytest.mark.asyncio
async def test_an_abort_before_the_last_score_ends_a_whole_stream_without_any() -> None:
    async with engine_room(max_positions=16) as room:
        room.during_step(3, lambda: room.engine.abort("a"))
        answer = await room.answer(scored(num_sequences=2))
    kinds = [type(event) for event in answer.events]
    assert kinds == [Started, SequenceFinished, SequenceFinished, Finished]
    assert answer.started.prompt_logprobs == ()
    assert {end.reason for end in answer.ends} == {FinishReason.ABORTED}


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["poisoned", "step"])
async def test_a_failure_before_the_last_score_comes_behind_the_start(way: str) -> None:
    def harm() -> None:
        if way == "step":
            raise RuntimeError
        room.device.poisoned.add("a")

    async with engine_room(max_positions=16) as room:
        room.during_step(3, harm)
        answer = await room.answer(scored())
    assert type(answer.error) is {"poisoned": NonFiniteLogits, "step": StepFailed}[way]
    assert [type(event) for event in answer.events] == [Started]
    assert answer.started.prompt_logprobs == ()


@pytest.mark.asyncio
async def test_a_reader_that_leaves_before_the_last_score_hears_nothing() -> None:
    gone = scored()
    async with engine_room(max_positions=16) as room:
        room.during_step(3, lambda: room.engine.cancel(gone.generation))
        answer = await room.answer(gone)
    assert answer.events == []
