"""Promises of calls for several sequences: each is a request of its own, and they end together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from drafters.contract import Drafter
from specd.engine.events import Delta, FinishReason, SequenceFinished
from specd.engine.generation import Generation
from specd.engine.request import Request
from specd.engine.seeds import sequence_seed
from specd.engine.step_types import LayoutSpec, PaddedBatch
from specd.errors import DuplicateRequest, NonFiniteLogits, OutOfPages, QueueFull, StepFailed
from specd.kv.pages import PAGE_SIZE
from tests.support.drafters import InlineDrafter, OracleDrafter
from tests.support.requests import Answer, make_request
from tests.unit.engine.loop_support import (
    PACKED,
    RECTANGLE,
    check_heard,
    engine_room,
    expected,
    mixed_requests,
    whole_text,
)

Maker = Callable[[list[list[int]]], Drafter]


def several(name: str = "a", number: int = 3, **options: object) -> Request:
    """The first sequence of `number`, which run until they are ended where nothing else is said."""
    asked = {"max_new_tokens": 4000, "ignore_eos": True, "seed": 5} | options
    return make_request(name, num_sequences=number, **asked)  # type: ignore[arg-type]


def right_tokens(generation: Generation) -> list[list[int]]:
    return [expected(sequence) for sequence in generation.sequences]


def tokens_of(answer: Answer, number: int) -> list[list[int]]:
    return [answer.sequence(index).token_ids for index in range(number)]


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [1, 2, 16])
@pytest.mark.parametrize("num_pages", [4, 200])
@pytest.mark.parametrize("layout", [PACKED, RECTANGLE], ids=["packed", "rectangle"])
async def test_every_sequence_is_what_a_request_of_its_own_with_its_seed_gets(
    number: int, num_pages: int, layout: LayoutSpec
) -> None:
    request = several(number=number, prompt=[7] * 20, max_new_tokens=30, drafters=("o",), seed=11)
    alone = [
        make_request("x", [7] * 20, max_new_tokens=30, seed=sequence_seed(11, n), ignore_eos=True)
        for n in range(number)
    ]
    neighbours = mixed_requests(6, drafters=("o",), longest=40)
    texts = [whole_text(one) for one in (*request.generation.sequences, *neighbours)]
    right = [expected(one) for one in alone], [expected(one) for one in neighbours]
    oracle = OracleDrafter(texts, size=3)
    async with engine_room({"o": oracle}, num_pages=num_pages, layout=layout, max_rows=6) as room:
        answer, *others = await room.answers([request, *neighbours])
    assert (tokens_of(answer, number), [other.token_ids for other in others]) == right
    assert len({tuple(ids) for ids in right[0]}) == number


@pytest.mark.asyncio
async def test_a_call_starts_once_and_finishes_once_with_the_sums_of_its_sequences() -> None:
    request = several(max_new_tokens=6, drafters=("o",), ignore_eos=False, stop_token_ids={98})
    generation = request.generation
    oracle = OracleDrafter([whole_text(one) for one in generation.sequences], size=2)
    right = right_tokens(generation)
    assert len({len(ids) for ids in right}) > 1  # they end at different steps
    async with engine_room({"o": oracle}) as room:
        answer = await room.answer(request)
    assert answer.started.seed == 5
    assert answer.started.sequence_seeds == tuple(sequence_seed(5, n) for n in range(3))
    assert sorted(end.sequence_index for end in answer.ends) == [0, 1, 2]
    usage, total = answer.finished.usage, answer.finished.speculation.total
    assert (usage.num_prompt_tokens, usage.num_completion_tokens) == (3, sum(map(len, right)))
    steps = [step for delta in answer.deltas for step in delta.steps]
    assert total.verify_steps == len(steps) == sum(total.accepted_length_histogram)
    assert total.accepted_draft_tokens == sum(step.num_accepted for step in steps) > 0
    assert total.draft_tokens == sum(step.num_draft_tokens for step in steps)


@pytest.mark.asyncio
async def test_a_sequence_that_has_ended_is_told_at_once_and_the_others_go_on() -> None:
    request = several(max_new_tokens=40, stop_token_ids={97}, number=4)
    right = right_tokens(request.generation)
    async with engine_room() as room:
        answer = await room.answer(request)
    assert tokens_of(answer, 4) == right
    ended = {end.sequence_index: answer.events.index(end) for end in answer.ends}
    first, last = min(ended, key=ended.__getitem__), max(ended, key=ended.__getitem__)
    behind = answer.events[ended[first] :]
    assert any(isinstance(e, Delta) and e.sequence_index == last for e in behind)


@pytest.mark.asyncio
async def test_an_abort_ends_every_sequence_that_is_left() -> None:
    request = several(stop_token_ids={97})
    right = right_tokens(request.generation)
    shortest = min(map(len, right))

    def abort() -> None:
        assert room.engine.abort("a")

    async with engine_room(max_rows=2) as room:
        room.during_step(shortest + 2, abort)
        answer = await room.answer(request)
        assert len(room.device.batches) == shortest + 2
    reasons = [end.reason for end in answer.ends]
    assert sorted(reason.name for reason in reasons) == ["ABORTED", "ABORTED", "STOP_TOKEN"]
    for ids, whole in zip(tokens_of(answer, 3), right, strict=True):
        assert ids == whole[: len(ids)]


@pytest.mark.asyncio
async def test_nobody_can_abort_one_sequence_alone() -> None:
    request = several(max_new_tokens=9)
    names = [sequence.request_id for sequence in request.generation.sequences]
    assert [name.isprintable() for name in names] == [True, False, False]
    found: list[bool] = []

    async with engine_room() as room:
        room.during_step(3, lambda: found.extend(map(room.engine.abort, names[1:])))
        answer = await room.answer(request)
    assert found == [False, False]
    assert {end.reason for end in answer.ends} == {FinishReason.MAX_TOKENS}


@pytest.mark.asyncio
async def test_a_reader_that_leaves_leaves_all_sequences() -> None:
    gone, neighbour = several(number=5), make_request("next", max_new_tokens=20)
    right = expected(neighbour)
    async with engine_room(max_rows=3) as room:
        room.during_step(4, lambda: room.engine.cancel(gone.generation))
        answers = await room.answers([gone, neighbour])
    assert answers[0].cut
    assert answers[1].token_ids == right


@pytest.mark.asyncio
@pytest.mark.parametrize("poisoned", [0, 1, 2])
async def test_a_sequence_that_fails_ends_the_call_and_frees_the_others(poisoned: int) -> None:
    request, neighbours = several(), mixed_requests(4)
    right = [expected(one) for one in neighbours]
    bad = request.generation.sequences[poisoned].request_id
    async with engine_room(max_rows=8) as room:
        room.during_step(3, lambda: room.device.poisoned.add(bad))
        answer, *others = await room.answers([request, *neighbours])
    assert isinstance(answer.error, NonFiniteLogits)
    assert answer.ends == []
    assert [other.token_ids for other in others] == right


@pytest.mark.asyncio
async def test_a_step_that_raises_ends_calls_of_which_one_sequence_was_in_it() -> None:
    request = several(number=3, max_new_tokens=9)
    later = make_request("later")

    async def fail(batch: PaddedBatch) -> None:
        if len(room.device.batches) == 2:
            assert [row.request_id for row in batch.rows] == ["a"]
            raise RuntimeError

    async with engine_room(max_rows=1) as room:
        room.device.during = fail
        answers = await room.answers([request, later])
    assert isinstance(answers[0].error, StepFailed)
    assert answers[1].token_ids == expected(make_request("later"))


@pytest.mark.asyncio
async def test_a_sequence_that_outgrows_the_pool_alone_fails_the_call() -> None:
    request, neighbour = several(number=2, prompt=[1] * 20), make_request("next")
    right = [ids[: PAGE_SIZE + 1 - 20] for ids in right_tokens(request.generation)]
    async with engine_room(num_pages=1) as room:
        answer, other = await room.answers([request, neighbour])
    assert isinstance(answer.error, OutOfPages)
    # The younger waits until the older has ended or failed.
    assert (answer.sequence(0).token_ids, answer.sequence(1).token_ids) == (right[0], [])
    assert other.token_ids == expected(make_request("next"))


@pytest.mark.asyncio
async def test_the_queue_is_as_long_as_the_sequences_in_it() -> None:
    async with engine_room(max_rows=2, max_waiting=3) as room:
        with pytest.raises(QueueFull):
            room.engine.submit(several(number=6).generation)
        with pytest.raises(QueueFull), room.engine.expecting("a", 6):
            pass
        stream = room.start(several(number=5, max_new_tokens=3))
        with pytest.raises(QueueFull):
            room.engine.submit(make_request("b").generation)
        assert (await stream).error is None
        assert (await room.answer(make_request("b"))).error is None


@pytest.mark.asyncio
async def test_the_id_of_a_call_is_taken_until_its_last_sequence_has_ended() -> None:
    request = several(max_new_tokens=30, stop_token_ids={97})
    right = right_tokens(request.generation)
    refused: list[int] = []

    async def again(batch: PaddedBatch) -> None:
        with pytest.raises(DuplicateRequest):
            room.engine.submit(make_request("a").generation)
        refused.append(len(batch.rows))

    async with engine_room() as room:
        room.device.during = again
        answer = await room.answer(request)
        room.device.during = None
        assert (await room.answer(make_request("a"))).error is None
    assert tokens_of(answer, 3) == right
    assert refused[-1] < 3


@pytest.mark.asyncio
async def test_statistics_count_sequences_and_a_drain_counts_calls() -> None:
    request = several(number=4)
    seen: list[tuple[int, int, int]] = []

    def look() -> None:
        now = room.engine.statistics()
        seen.append((now.running, now.waiting, now.slots_used))
        assert room.engine.live() == [request.generation]
        room.engine.abort_all()

    async with engine_room(max_rows=3) as room:
        room.during_step(2, look)
        answer = await room.answer(request)
    assert seen == [(3, 1, 3)]
    assert [end.reason for end in answer.ends] == [FinishReason.ABORTED] * 4
    assert len(answer.token_ids) == 3


@pytest.mark.asyncio
async def test_a_call_that_is_aborted_before_it_runs_has_a_whole_stream() -> None:
    async with engine_room(max_rows=1) as room:
        stream = room.start(several("runs", number=1))
        await asyncio.sleep(0)
        waiting = room.start(several("waits", number=2))
        assert room.engine.abort("waits")
        answer = await waiting
        room.engine.abort("runs")
        await stream
    assert [type(event) for event in answer.events[1:3]] == [SequenceFinished] * 2
    assert (answer.ends[0].reason, answer.deltas) == (FinishReason.ABORTED, [])


@pytest.mark.asyncio
async def test_a_drafter_hears_of_each_sequence_as_of_a_request() -> None:
    watcher = InlineDrafter()
    request = several(number=3, max_new_tokens=5, drafters=("w",))
    async with engine_room({"w": watcher}) as room:
        answer = await room.answer(request)
    for index, sequence in enumerate(request.generation.sequences):
        check_heard(watcher, sequence, answer.sequence(index))
