"""Promises of runs of accepted draft tokens: how far they may go, and who is hurt by wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from drafters.contract import DraftContext
from drafters.ngram import NgramDrafter
from specd.engine.events import FinishReason
from specd.engine.step_types import LayoutSpec
from tests.support.drafters import InlineDrafter, OracleDrafter, WrongDrafter
from tests.support.null_device import NullModel
from tests.support.requests import VOCAB_SIZE, make_request
from tests.unit.engine.loop_support import (
    PACKED,
    RECTANGLE,
    engine_room,
    expected,
    whole_text,
)

LAYOUTS = pytest.mark.parametrize("layout", [PACKED, RECTANGLE], ids=["packed", "rectangle"])


class Refrain(NullModel):
    """Says the same words over and over."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self._ids = list(words.encode())

    def choose(self, seed: int, position: int, *args: object, **more: object) -> int:
        return self._ids[position % len(self._ids)]


@pytest.mark.asyncio
@pytest.mark.parametrize("left", [1, 2, 8, 15, 16, 17, 18, 33])
@LAYOUTS
async def test_no_draft_reaches_beyond_the_context_however_long_the_drafter_makes_them(
    left: int, layout: LayoutSpec
) -> None:
    request = make_request(
        prompt=[7] * 56, max_new_tokens=100, context_left=left, ignore_eos=True,
        drafters=("o",), max_draft_tokens=16,
    )  # fmt: skip
    right = expected(request)
    oracle = OracleDrafter([whole_text(request)], size=16)
    async with engine_room({"o": oracle}, layout=layout) as room:
        answer = await room.answer(request)
        last = max(row.first_position + row.count for b in room.device.batches for row in b.rows)
        again = await room.answer(make_request("next"))
    assert (answer.token_ids, answer.reason) == (right, FinishReason.CONTEXT_LENGTH)
    assert len(right) == left
    assert last <= 56 + left - 1  # the last token of all is never computed
    assert again.token_ids == expected(make_request("next"))


@pytest.mark.asyncio
@pytest.mark.parametrize("refusal", [None, IndexError("beyond my 256 positions")])
async def test_a_text_that_is_too_long_for_a_drafter_is_answered_without_its_drafts(
    refusal: Exception | None,
) -> None:
    short, long = (
        make_request(name, [7] * length, max_new_tokens=20, ignore_eos=True, drafters=("small",))
        for name, length in (("short", 200), ("long", 400))
    )
    right = expected(short), expected(long)
    oracle = OracleDrafter([whole_text(short), whole_text(long)])

    def up_to_256(batch: Sequence[DraftContext], budgets: Sequence[int]) -> list[Any]:
        drafts = oracle.propose(batch, budgets)
        rows = zip(batch, drafts, strict=True)
        return [draft if len(row.tokens) <= 256 else refusal for row, draft in rows]

    async with engine_room({"small": InlineDrafter(up_to_256)}) as room:
        answers = await room.answers([short, long])
    assert (answers[0].token_ids, answers[1].token_ids) == right
    drafted = [answer.finished.speculation.total.draft_tokens for answer in answers]
    assert drafted[0] > 0
    assert drafted[1] == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("include", [False, True])
@LAYOUTS
async def test_a_stop_string_of_many_tokens_ends_a_long_run_that_looks_up_the_prompt(
    include: bool, layout: LayoutSpec
) -> None:
    words = "so it goes <|end|> and again "
    prompt = [*words.encode()] * 3
    request = make_request(
        prompt=prompt, max_new_tokens=200, drafters=("n",), max_draft_tokens=14,
        stop_strings=("<|end|>",), include_stop=include,
    )  # fmt: skip
    async with engine_room({"n": NgramDrafter()}, model=Refrain(words), layout=layout) as room:
        answer = await room.answer(request)
    assert answer.reason is FinishReason.STOP_STRING
    assert bytes(answer.token_ids).decode() == "so it goes <|end|>"
    assert answer.text == ("so it goes <|end|>" if include else "so it goes ")
    total = answer.finished.speculation.total
    assert total.verify_steps < 4
    assert total.accepted_draft_tokens <= len(answer.token_ids)


@pytest.mark.asyncio
@LAYOUTS
async def test_five_hundred_wrong_drafts_hurt_no_neighbour(layout: LayoutSpec) -> None:
    requests = [
        make_request(f"r{n}", [n], seed=n, max_new_tokens=500, ignore_eos=True, drafters=(name,))
        for n, name in enumerate(("wrong", "right") * 4)
    ]
    right = [expected(request) for request in requests]
    texts = [request.tokens + ids for request, ids in zip(requests, right, strict=True)]
    guests = {
        "wrong": WrongDrafter(texts, VOCAB_SIZE, size=3),
        "right": OracleDrafter(texts, size=1),
    }
    async with engine_room(guests, layout=layout, max_rows=8) as room:
        answers = await room.answers(requests)
    assert [answer.token_ids for answer in answers] == right
    totals = [answer.finished.speculation.total for answer in answers]
    assert {total.accepted_draft_tokens for total in totals[::2]} == {0}
    assert {total.accepted_length_histogram for total in totals[::2]} == {(500,)}
    assert all(total.accepted_draft_tokens == total.draft_tokens > 200 for total in totals[1::2])
