"""Promises of what is counted: statistics of a request, of a drafter and of padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from drafters.contract import DraftContext, Drafter
from specd.engine.events import Delta, SpeculationStats
from specd.engine.step_types import LayoutSpec
from tests.support.drafters import InlineDrafter, OracleDrafter, WrongDrafter, constant, nothing
from tests.support.null_device import NullModel
from tests.support.requests import VOCAB_SIZE, Answer, make_request
from tests.unit.engine.loop_support import (
    MODEL,
    PACKED,
    RECTANGLE,
    engine_room,
    expected,
    mixed_requests,
    whole_text,
)

LAYOUTS = pytest.mark.parametrize("layout", [PACKED, RECTANGLE], ids=["packed", "rectangle"])


def check_counts(answer: Answer) -> None:
    """The invariants of `SpeculationStats`, cut runs included."""
    stats: SpeculationStats = answer.finished.speculation
    for counts in (stats.total, *stats.by_drafter.values()):
        histogram = counts.accepted_length_histogram
        assert sum(histogram) == counts.verify_steps
        assert sum(i * n for i, n in enumerate(histogram)) == counts.accepted_draft_tokens
        assert counts.accepted_draft_tokens <= counts.draft_tokens
    steps = [step for delta in answer.deltas for step in delta.steps]
    total = stats.total
    assert len(steps) == total.verify_steps
    assert sum(step.num_draft_tokens for step in steps) == total.draft_tokens
    assert sum(step.num_accepted for step in steps) == total.accepted_draft_tokens
    for name, counts in stats.by_drafter.items():
        own = [step for step in steps if step.drafter == name]
        assert len(own) == counts.verify_steps
        assert sum(step.num_draft_tokens for step in own) == counts.draft_tokens
    completion = answer.finished.usage.num_completion_tokens
    # The cut is 1 where the last run ended on an accepted draft token, else 0.
    assert total.accepted_draft_tokens + total.verify_steps - completion in {0, 1}


@pytest.mark.asyncio
@LAYOUTS
@pytest.mark.parametrize("num_pages", [5, 200])
async def test_the_counts_of_every_request_add_up(layout: LayoutSpec, num_pages: int) -> None:
    model = NullModel(eos_id=511, eos_every=15)
    requests = mixed_requests(40, drafters=("wrong", "oracle"), longest=50)
    texts = [whole_text(request, model) for request in requests]
    drafters: dict[str, Drafter] = {
        "wrong": WrongDrafter(texts[::2], VOCAB_SIZE, size=3),
        "oracle": OracleDrafter(texts),
    }
    async with engine_room(drafters, model=model, layout=layout, num_pages=num_pages) as room:
        answers = await room.answers(requests)
        accepted = room.engine.accepted_by_drafter
        waste = room.engine.waste
        real = sum(batch.num_real for batch in room.device.batches)
    for answer in answers:
        check_counts(answer)
    by_oracle = sum(
        answer.finished.speculation.by_drafter["oracle"].accepted_draft_tokens
        for answer in answers
        if "oracle" in answer.finished.speculation.by_drafter
    )
    assert accepted["oracle"] == by_oracle > 0
    assert accepted["wrong"] == 0
    assert waste.real_positions == real


@pytest.mark.asyncio
@LAYOUTS
async def test_a_right_draft_of_one_token_is_an_acceptance_of_one(layout: LayoutSpec) -> None:
    request = make_request(max_new_tokens=21, ignore_eos=True, drafters=("o",))
    oracle = OracleDrafter([whole_text(request)], size=1)
    async with engine_room({"o": oracle}, layout=layout) as room:
        answer = await room.answer(request)
    counts = answer.finished.speculation.by_drafter["o"]
    assert counts.draft_tokens == counts.accepted_draft_tokens == counts.verify_steps == 10


@pytest.mark.asyncio
@LAYOUTS
async def test_a_pad_is_never_accepted_where_the_model_says_token_zero(layout: LayoutSpec) -> None:
    model = NullModel(eos_id=0, eos_every=2)  # every second token is id 0, which ends nothing
    request = make_request(max_new_tokens=41, drafters=("o",), ignore_eos=True)
    text = whole_text(request, model)
    right = expected(request, model)
    oracle = OracleDrafter([text], size=1)
    other = make_request("other", max_new_tokens=41, drafters=("o",), ignore_eos=True, seed=5)
    wide = OracleDrafter([whole_text(other, model)])

    class Both(InlineDrafter):
        def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
            narrow = oracle.propose(batch, budgets)
            broad = wide.propose(batch, budgets)
            return [n or b for n, b in zip(narrow, broad, strict=True)]

    async with engine_room({"o": Both()}, model=model, layout=layout) as room:
        answer, _ = await room.answers([request, other])
    assert answer.token_ids == right
    assert right.count(0) > 10
    for step in (step for delta in answer.deltas for step in delta.steps):
        assert step.num_draft_tokens <= 1
        assert step.num_accepted <= step.num_draft_tokens


@pytest.mark.asyncio
async def test_a_draft_of_token_zero_is_a_draft() -> None:
    model = NullModel(eos_id=0, eos_every=1)  # nothing but id 0
    request = make_request(max_new_tokens=19, ignore_eos=True, drafters=("z",), max_draft_tokens=2)
    async with engine_room({"z": InlineDrafter(constant(0, 0))}, model=model) as room:
        answer = await room.answer(request)
    total = answer.finished.speculation.total
    assert answer.token_ids == [0] * 19
    assert (total.draft_tokens, total.accepted_draft_tokens, total.verify_steps) == (12, 12, 7)


@pytest.mark.asyncio
async def test_pads_are_charged_to_rows_and_add_up_to_the_waste() -> None:
    requests = [
        make_request(f"r{n}", [n], max_new_tokens=9 + n, ignore_eos=True, drafters=("o",))
        for n in range(4)
    ]
    oracle = OracleDrafter([whole_text(request) for request in requests[:2]], size=3)
    async with engine_room({"o": oracle}, layout=RECTANGLE) as room:
        answers = await room.answers(requests)
        wasted = room.engine.waste.pad_positions
    charged = [answer.finished.speculation.total.pad_positions for answer in answers]
    assert sum(charged) == wasted > 0


@pytest.mark.asyncio
async def test_illegal_ids_are_a_fault_of_the_drafter_and_the_sound_part_is_used() -> None:
    request = make_request(max_new_tokens=6, ignore_eos=True, drafters=("bad",), max_draft_tokens=3)
    text = whole_text(request)

    def one_right_one_bad(row: DraftContext, budget: int) -> list[int]:
        return [text[len(row.tokens)], -1]

    def each(batch: Sequence[DraftContext], budgets: Sequence[int]) -> list[list[int]]:
        return list(map(one_right_one_bad, batch, budgets))

    async with engine_room({"bad": InlineDrafter(each)}) as room:
        answer = await room.answer(request)
        seen = room.engine.drafting.statistics()["bad"]
    counts = answer.finished.speculation.by_drafter["bad"]
    assert answer.token_ids == MODEL.continuation(0, [1, 2, 3], 6)
    assert counts.faults == seen.faults >= 2
    assert counts.accepted_draft_tokens == counts.draft_tokens >= 2


@pytest.mark.asyncio
async def test_a_step_whose_draft_was_nothing_but_illegal_is_a_plain_one() -> None:
    request = make_request(max_new_tokens=4, ignore_eos=True, drafters=("bad",))
    async with engine_room({"bad": InlineDrafter(constant(-1, 97))}) as room:
        answer = await room.answer(request)
    steps = [step for delta in answer.deltas for step in delta.steps]
    assert {(step.drafter, step.num_draft_tokens) for step in steps} == {(None, 0)}
    counts = answer.finished.speculation.by_drafter["bad"]
    assert (counts.verify_steps, counts.draft_tokens) == (0, 0)
    assert counts.faults >= 1


@pytest.mark.asyncio
async def test_without_drafters_every_delta_is_a_plain_step_of_one_token() -> None:
    watcher = InlineDrafter(nothing)
    request = make_request(max_new_tokens=5, ignore_eos=True)
    async with engine_room({"w": watcher}) as room:
        answer = await room.answer(request)
    assert watcher.events == []
    total = answer.finished.speculation.total
    assert (total.verify_steps, total.draft_tokens, total.draft_time_s) == (5, 0, 0.0)
    steps = [step for event in answer.events if isinstance(event, Delta) for step in event.steps]
    assert {(step.drafter, step.num_draft_tokens) for step in steps} == {(None, 0)}


@pytest.mark.asyncio
async def test_a_draft_that_is_wider_than_the_widest_rectangle_is_cut_to_it() -> None:
    request = make_request(max_new_tokens=60, ignore_eos=True, drafters=("o",), max_draft_tokens=30)
    right, oracle = expected(request), OracleDrafter([whole_text(request)])
    async with engine_room({"o": oracle}, layout=RECTANGLE) as room:
        answer = await room.answer(request)
    assert answer.token_ids == right
    histogram = answer.finished.speculation.by_drafter["o"].accepted_length_histogram
    assert len(histogram) == RECTANGLE.widths[-1]
