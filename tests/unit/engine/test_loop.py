"""Promises of the loop: every stream is what its request gets alone, whatever runs beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from drafters.contract import Drafter
from drafters.ngram import NgramDrafter
from specd.engine.events import FinishReason, SequenceFinished, Started
from specd.engine.request import Request
from specd.engine.step_types import LayoutSpec, PaddedBatch
from specd.errors import OutOfPages
from specd.kv.pages import PAGE_SIZE
from tests.support.drafters import InlineDrafter, OracleDrafter, WrongDrafter, constant
from tests.support.null_device import NullModel
from tests.support.requests import EOS_ID, VOCAB_SIZE, make_request, read_all
from tests.unit.engine.loop_support import (
    MODEL,
    PACKED,
    RECTANGLE,
    engine_room,
    expected,
    mixed_requests,
    whole_text,
)

Maker = Callable[[list[list[int]]], Drafter]
GUESTS: dict[str, Maker] = {
    "oracle": OracleDrafter,
    "oracle of two": lambda texts: OracleDrafter(texts, size=2),
    "wrong": lambda texts: WrongDrafter(texts, VOCAB_SIZE),
    "constant": lambda texts: InlineDrafter(constant(0, 97, 0, 97)),
    "ngram": lambda texts: NgramDrafter(),
}
LAYOUTS = {"packed": PACKED, "rectangle": RECTANGLE}


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [1, 4, 40])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
async def test_plain_streams_are_what_each_request_gets_alone(
    number: int, layout: LayoutSpec
) -> None:
    requests = mixed_requests(number)
    right = [expected(request) for request in requests]
    async with engine_room(layout=layout) as room:
        answers = await room.answers(requests)
    assert [answer.token_ids for answer in answers] == right


@pytest.mark.asyncio
@pytest.mark.parametrize("guest", GUESTS)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
async def test_no_drafter_changes_a_token(guest: str, layout: LayoutSpec) -> None:
    requests = mixed_requests(40, drafters=("guest",))
    right = [expected(request) for request in requests]
    drafter = GUESTS[guest]([whole_text(request) for request in requests])
    async with engine_room({"guest": drafter}, layout=layout, max_rows=6) as room:
        answers = await room.answers(requests)
    assert [answer.token_ids for answer in answers] == right
    accepted = sum(a.finished.speculation.total.accepted_draft_tokens for a in answers)
    assert (accepted > 0) == (guest != "wrong")


@pytest.mark.asyncio
@pytest.mark.parametrize("guest", GUESTS)
@pytest.mark.parametrize("num_pages", [4, 6])
async def test_preemption_changes_no_token(guest: str, num_pages: int) -> None:
    requests = mixed_requests(24, drafters=("guest",), longest=50)
    right = [expected(request) for request in requests]
    drafter = GUESTS[guest]([whole_text(request) for request in requests])
    async with engine_room({"guest": drafter}, num_pages=num_pages, max_rows=6) as room:
        answers = await room.answers(requests)
        assert room.num_preemptions() > 0
    assert [answer.token_ids for answer in answers] == right


@pytest.mark.asyncio
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, PAGE_SIZE, PAGE_SIZE + 1, 100])
async def test_a_prompt_in_chunks_beside_decoders_gives_the_same_tokens(length: int) -> None:
    requests = [make_request(f"d{n}", [n], max_new_tokens=30, ignore_eos=True) for n in range(3)]
    late = make_request("late", [9] * length, max_new_tokens=20, ignore_eos=True)
    right = [expected(request) for request in [*requests, late]]
    async with engine_room(max_positions=16) as room:
        streams = [room.start(request) for request in requests]

        async def arrive(batch: PaddedBatch) -> None:
            if len(room.device.batches) == 3:
                streams.append(room.start(late))

        room.device.during = arrive
        await asyncio.gather(*streams)
        answers = await asyncio.gather(*streams)
    assert [answer.token_ids for answer in answers] == right
    assert all(batch.num_real <= 16 for batch in room.device.batches)


@pytest.mark.asyncio
async def test_a_seed_says_which_tokens_come_alone_and_in_a_batch_of_eight() -> None:
    async with engine_room(max_rows=8) as room:

        async def tokens(seeds: list[int]) -> list[list[int]]:
            requests = [make_request(f"r{n}", [5, 6], seed=seed) for n, seed in enumerate(seeds)]
            return [answer.token_ids for answer in await room.answers(requests)]

        alone = await tokens([3])
        together = await tokens([3, 1, 2, 3, 4, 5, 6, 3])
    assert together[0] == together[3] == together[7] == alone[0]
    assert len({tuple(ids) for ids in together}) == 6


@pytest.mark.asyncio
async def test_events_come_once_and_in_order_and_tell_what_was_asked() -> None:
    request = make_request("id", [1, 2, 3], seed=77, max_new_tokens=5, ignore_eos=True)
    async with engine_room() as room:
        answer = await room.answer(request)
    started = answer.events[0]
    assert isinstance(started, Started)
    assert (started.request_id, started.model, started.fingerprint) == ("id", "null", "fingerprint")
    assert (started.num_prompt_tokens, started.num_cached_prompt_tokens) == (3, 0)
    assert (started.seed, answer.reason) == (77, FinishReason.MAX_TOKENS)
    usage = answer.finished.usage
    assert (usage.num_prompt_tokens, usage.num_completion_tokens) == (3, 5)


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 9])
async def test_a_right_drafter_never_makes_more_tokens_than_asked(limit: int) -> None:
    request = make_request(max_new_tokens=limit, drafters=("o",), ignore_eos=True)
    oracle = OracleDrafter([whole_text(request)])
    right = expected(request)
    async with engine_room({"o": oracle}) as room:
        answer = await room.answer(request)
    assert (answer.token_ids, answer.reason) == (right, FinishReason.MAX_TOKENS)
    assert answer.finished.usage.num_completion_tokens == limit


@pytest.mark.asyncio
async def test_a_draft_that_runs_past_eos_ends_at_eos() -> None:
    model = NullModel(eos_id=EOS_ID, eos_every=6)
    requests = [make_request(f"r{n}", [n], max_new_tokens=100, drafters=("o",)) for n in range(20)]
    oracle = OracleDrafter([whole_text(request, model) for request in requests])
    right = [expected(request, model) for request in requests]
    async with engine_room({"o": oracle}, model=model) as room:
        answers = await room.answers(requests)
    assert [answer.token_ids for answer in answers] == right
    for answer in answers:
        total = answer.finished.speculation.total
        assert answer.reason is FinishReason.EOS_TOKEN
        assert total.accepted_draft_tokens <= len(answer.token_ids)


@pytest.mark.asyncio
async def test_of_two_stop_strings_inside_one_accepted_run_the_earliest_wins() -> None:
    model = NullModel()
    texts = (model.continuation(seed, [1, 2, 3], 40) for seed in range(99))
    # The first token comes from the prompt; the run that is drafted begins behind it.
    seed, text = next((s, t) for s, t in enumerate(texts) if ascii_places(t)[0] >= 2)
    first, *later = ascii_places(text)
    other = next(place for place in later if text[place] != text[first])
    request = make_request(
        seed=seed,
        max_new_tokens=40,
        drafters=("o",),
        max_draft_tokens=30,
        stop_strings=(chr(text[other]), chr(text[first])),
    )
    oracle = OracleDrafter([whole_text(request, model)])
    async with engine_room({"o": oracle}, model=model) as room:
        answer = await room.answer(request)
        assert any(other < row.count for batch in room.device.batches for row in batch.rows)
    (sequence,) = [event for event in answer.events if isinstance(event, SequenceFinished)]
    assert sequence == SequenceFinished(FinishReason.STOP_STRING, None, chr(text[first]))
    assert answer.token_ids == text[: first + 1]


def ascii_places(ids: list[int]) -> list[int]:
    return [place for place, token in enumerate(ids) if token < 128]


@pytest.mark.asyncio
async def test_the_context_ends_a_generation_with_drafts_at_its_last_token() -> None:
    request = make_request(max_new_tokens=100, context_left=13, drafters=("o",), ignore_eos=True)
    oracle = OracleDrafter([whole_text(request)])
    right = MODEL.continuation(0, [1, 2, 3], 13)
    async with engine_room({"o": oracle}) as room:
        answer = await room.answer(request)
    assert (answer.token_ids, answer.reason) == (right, FinishReason.CONTEXT_LENGTH)


@pytest.mark.asyncio
async def test_a_reader_that_comes_late_gets_the_same_stream() -> None:
    prompt, late = make_request("prompt", ignore_eos=True), make_request("late", ignore_eos=True)
    async with engine_room() as room:
        first = await room.answer(prompt)
        room.engine.submit(late.generation)
        await room.engine.wait_idle()
        second = await read_all(late.generation.mailbox)
    assert (len(first.deltas), len(second.deltas)) == (8, 1)
    assert (second.token_ids, second.text) == (first.token_ids, first.text)
    assert len(second.deltas[0].steps) == 8


async def pool_answer(num_pages: int, request: Request) -> tuple[list[int], type | None]:
    async with engine_room(num_pages=num_pages) as room:
        answer = await room.answer(request)
    return answer.token_ids, type(answer.error) if answer.error else None


@pytest.mark.asyncio
async def test_a_lone_request_that_outgrows_the_pool_fails_with_what_it_had() -> None:
    request = make_request(max_new_tokens=100, ignore_eos=True)
    right = MODEL.continuation(0, [1, 2, 3], 100)[: PAGE_SIZE + 1 - 3]
    assert await pool_answer(1, request) == (right, OutOfPages)


@pytest.mark.asyncio
async def test_a_generation_that_fits_the_pool_to_the_last_position_ends_cleanly() -> None:
    request = make_request(max_new_tokens=PAGE_SIZE + 1 - 3, ignore_eos=True)
    right = MODEL.continuation(0, [1, 2, 3], PAGE_SIZE + 1 - 3)
    assert await pool_answer(1, request) == (right, None)


@pytest.mark.asyncio
async def test_requests_larger_than_the_pool_fail_and_do_not_hold_up_the_others() -> None:
    big = [make_request(f"big{n}", [1] * 20, max_new_tokens=200, ignore_eos=True) for n in range(3)]
    small = mixed_requests(12, longest=30)
    right = [expected(request) for request in small]
    async with engine_room(num_pages=3) as room:
        answers = await room.answers([big[0], *small[:6], big[1], big[2], *small[6:]])
    failed = [answer for answer in answers if isinstance(answer.error, OutOfPages)]
    lengths = [len(answer.token_ids) for answer in failed]
    assert lengths == [3 * PAGE_SIZE + 1 - 20] * 3
    assert [answer.token_ids for answer in answers if answer.error is None] == right


@pytest.mark.asyncio
async def test_a_thousand_short_requests_leave_nothing_behind() -> None:
    async with engine_room(num_pages=8, max_waiting=1000) as room:
        requests = [make_request(f"r{n}", [n % 9], max_new_tokens=2) for n in range(1000)]
        answers = await room.answers(requests)
    assert all(answer.error is None for answer in answers)
