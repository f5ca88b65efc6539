"""Promises of what decides a token besides its logits: counts, bans, and what is told of it.

The null device chooses by the counts of the row, never chooses what is banned, and raises where
counts are not those of the tokens before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from drafters.contract import Drafter
from specd.engine.events import Delta, FinishReason
from specd.engine.step_types import PaddedBatch, TokenLogprob
from tests.support.drafters import InlineDrafter, OracleDrafter, WrongDrafter, constant
from tests.support.null_device import NullModel
from tests.support.requests import EOS_ID, VOCAB_SIZE, make_request
from tests.unit.engine.loop_support import MODEL, engine_room, expected, whole_text

GUESTS: dict[str, Callable[[list[list[int]]], Drafter]] = {
    "oracle": OracleDrafter,
    "oracle of two": lambda texts: OracleDrafter(texts, size=2),
    "wrong": lambda texts: WrongDrafter(texts, VOCAB_SIZE),
    "constant": lambda texts: InlineDrafter(constant(97, 97, 97)),
    "none": lambda texts: InlineDrafter(),
}
PENALTIES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.2},
    {"presence_penalty": -0.5},
    {"frequency_penalty": 0.5},
]
TALKATIVE = NullModel(eos_id=EOS_ID, eos_every=3)  # without a minimum it ends within a few tokens


@pytest.mark.asyncio
@pytest.mark.parametrize("guest", GUESTS)
@pytest.mark.parametrize("num_pages", [4, 200])
async def test_counts_are_those_of_the_committed_tokens_whatever_is_drafted_or_preempted(
    guest: str, num_pages: int
) -> None:
    requests = [
        make_request(f"r{n}", [7 + place % 5 for place in range(1 + 9 * n % 50)], seed=n % 3,
                     max_new_tokens=20 + n, drafters=("d",), **PENALTIES[n % 3])
        for n in range(12)
    ]  # fmt: skip
    right = [expected(request) for request in requests]
    drafter = GUESTS[guest]([whole_text(request) for request in requests])
    async with engine_room({"d": drafter}, num_pages=num_pages, max_rows=6) as room:
        answers = await room.answers(requests)
        assert (room.num_preemptions() > 0) == (num_pages == 4)
    assert [answer.token_ids for answer in answers] == right


@pytest.mark.asyncio
async def test_only_rows_that_penalise_carry_counts() -> None:
    plain, other = make_request("plain"), make_request("other", frequency_penalty=0.5)
    carried: dict[str, set[bool]] = {"plain": set(), "other": set()}

    async def look(batch: PaddedBatch) -> None:
        for row in batch.rows:
            carried[row.request_id].add(row.choosing.seen is not None)

    async with engine_room() as room:
        room.device.during = look
        await room.answers([plain, other])
    assert carried == {"plain": {False}, "other": {True}}


@pytest.mark.asyncio
@pytest.mark.parametrize("guest", GUESTS)
@pytest.mark.parametrize("minimum", [1, 2, 9, 10])
async def test_nothing_ends_an_answer_before_min_new_tokens_and_eos_may_right_behind(
    guest: str, minimum: int
) -> None:
    requests = [
        make_request(f"r{n}", [n], seed=n, max_new_tokens=10, min_new_tokens=minimum,
                     stop_token_ids={98}, drafters=("d",))
        for n in range(20)
    ]  # fmt: skip
    right = [expected(request, TALKATIVE) for request in requests]
    drafter = GUESTS[guest]([whole_text(request, TALKATIVE) for request in requests])
    async with engine_room({"d": drafter}, model=TALKATIVE, num_pages=8, max_rows=6) as room:
        answers = await room.answers(requests)
    assert [answer.token_ids for answer in answers] == right
    for answer in answers:
        assert not {EOS_ID, 98} & set(answer.token_ids[:minimum])
    lengths = {len(ids) for ids in right}
    assert min(lengths) == min(10, minimum + 1)
    assert minimum > 8 or len(lengths) > 1


@pytest.mark.asyncio
async def test_a_drafter_that_proposes_eos_too_early_is_told_that_it_was_wrong() -> None:
    request = make_request(max_new_tokens=12, min_new_tokens=10, drafters=("e",))
    right = expected(request, TALKATIVE)
    eos = InlineDrafter(constant(EOS_ID))
    async with engine_room({"e": eos}, model=TALKATIVE) as room:
        answer = await room.answer(request)
    assert answer.token_ids == right
    early = [
        step for delta in answer.deltas if delta.num_completion_tokens <= 10 for step in delta.steps
    ]
    assert sum(step.num_draft_tokens for step in early) == 9
    assert sum(step.num_accepted for step in early) == 0


@pytest.mark.asyncio
async def test_with_ignore_eos_the_end_tokens_come_from_the_first_token_on() -> None:
    request = make_request(max_new_tokens=20, min_new_tokens=10, ignore_eos=True)
    plain = make_request(max_new_tokens=20, ignore_eos=True)
    right = expected(plain, TALKATIVE)
    async with engine_room(model=TALKATIVE) as room:
        answer = await room.answer(request)
    assert answer.token_ids == right
    assert EOS_ID in right[:10]


@pytest.mark.asyncio
async def test_bans_are_counted_anew_for_every_step_and_by_sequence() -> None:
    request = make_request(num_sequences=2, min_new_tokens=5, max_new_tokens=8, drafters=("o",))
    texts = [whole_text(one) for one in request.generation.sequences]
    seen: list[tuple[int, int]] = []

    async def look(batch: PaddedBatch) -> None:
        row = next(row for row in batch.rows if row.request_id == "a")
        known = row.first_position + row.count - row.draft_len
        seen.append((known, row.choosing.num_banned))

    async with engine_room({"o": OracleDrafter(texts, size=1)}, max_rows=2) as room:
        room.device.during = look
        await room.answer(request)
    assert seen == [(3 + known, max(0, 5 - known)) for known in (0, 1, 3, 5, 7)]


# --- log probabilities of the answer ---


def right_logprobs(prompt: list[int], ids: list[int], top: int) -> list[TokenLogprob]:
    return [
        MODEL.logprob(MODEL.digest(prompt + ids[:n]), token, top) for n, token in enumerate(ids)
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("guest", GUESTS)
@pytest.mark.parametrize("top", [0, 3])
async def test_every_token_has_its_own_log_probability_however_it_was_drafted(
    guest: str, top: int
) -> None:
    requests = [
        make_request(f"r{n}", [n], top_logprobs=top, max_new_tokens=11, stop_token_ids={97},
                     drafters=("d",), num_sequences=1 + n % 2)
        for n in range(8)
    ]  # fmt: skip
    sequences = [list(request.generation.sequences) for request in requests]
    right = [[expected(one) for one in each] for each in sequences]
    drafter = GUESTS[guest]([whole_text(one) for each in sequences for one in each])
    async with engine_room({"d": drafter}, num_pages=6, max_rows=6) as room:
        answers = await room.answers(requests)
    for n, (answer, wanted) in enumerate(zip(answers, right, strict=True)):
        for index, ids in enumerate(wanted):
            own = answer.sequence(index)
            assert own.token_ids == ids
            assert own.logprobs == right_logprobs([n], ids, top)
            assert all(len(one.logprobs) == len(one.token_ids) for one in own.deltas)


@pytest.mark.asyncio
async def test_behind_a_stop_inside_an_accepted_run_no_log_probability_is_told() -> None:
    request = make_request(max_new_tokens=40, stop_strings=("a",), top_logprobs=0, drafters=("o",))
    text = whole_text(request)
    end = text.index(97) + 1
    request = make_request(
        max_new_tokens=40, stop_strings=("a",), top_logprobs=0, drafters=("o",), max_draft_tokens=30
    )
    async with engine_room({"o": OracleDrafter([text])}) as room:
        answer = await room.answer(request)
    assert answer.reason is FinishReason.STOP_STRING
    assert any(row.count > end - 4 for batch in room.device.batches for row in batch.rows)
    assert [one.token_id for one in answer.logprobs] == answer.token_ids == text[3:end]


@pytest.mark.asyncio
async def test_who_asks_for_no_log_probabilities_gets_none() -> None:
    async with engine_room() as room:
        answer = await room.answer(make_request())
    assert answer.logprobs == []
    assert answer.started.prompt_logprobs == ()


@pytest.mark.asyncio
@pytest.mark.parametrize("processed", [False, True])
async def test_a_row_says_which_log_probabilities_are_wanted(processed: bool) -> None:
    request = make_request(top_logprobs=5, processed_logprobs=processed)
    async with engine_room() as room:
        await room.answer(request)
        wanted = {
            (row.choosing.top_logprobs, row.choosing.processed_logprobs)
            for batch in room.device.batches
            for row in batch.rows
        }
    assert wanted == {(5, processed)}


def test_a_delta_without_tokens_has_no_log_probabilities() -> None:
    assert Delta("text that was held back", (), 3).logprobs == ()
