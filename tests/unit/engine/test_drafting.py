"""Promises of the draft room: sessions, chains, order, feedback. Misbehaviour is next door."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Sequence
from typing import Any

import anyio
import numpy as np
import pytest

from drafters.contract import Drafter, Proposal
from specd.engine.drafting import DraftAsk, Drafting
from tests.support.drafters import (
    PATIENCE_S,
    AsyncDrafter,
    BlockingDrafter,
    InlineDrafter,
    Recorder,
    Script,
    constant,
    nothing,
)
from tests.unit.engine.drafting_support import GREEDY, LONG_S, Room

KINDS: list[type[Recorder]] = [InlineDrafter, AsyncDrafter, BlockingDrafter]


def by_request(answers: dict[str, Any]) -> Script:
    return lambda batch, budgets: [answers[row.request_id] for row in batch]


@pytest.mark.asyncio
async def test_a_step_without_asks_gives_no_drafts() -> None:
    assert await Room(inline=InlineDrafter()).step() == ()


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_a_drafter_hears_the_life_of_a_request_in_order(kind: type[Recorder]) -> None:
    drafter = kind(constant(7))
    room = Room(guest=drafter)
    room.begin("a", "guest", prompt=[1, 2])
    await room.patient_step("a")
    room.commit("a", [7, 9], accepted=1, maker="guest")
    room.drafting.end("a", "finished")
    await room.drafting.aclose()
    assert drafter.events == [
        ("begin", "a", [1, 2]),
        ("observe", "a", [4], 0),
        ("propose", [("a", [1, 2, 4])], [8]),
        ("observe", "a", [7, 9], 1),
        ("end", "a", "finished"),
    ]


@pytest.mark.asyncio
async def test_one_call_per_drafter_and_one_draft_per_row_in_the_order_asked() -> None:
    x, y, z = InlineDrafter(), AsyncDrafter(), BlockingDrafter()
    drafters: dict[str, Recorder] = {"x": x, "y": y, "z": z}
    room = Room(x=x, y=y, z=z)
    answers: dict[str, Any] = {}
    ids = [f"{name}{i}" for i in range(5) for name in drafters]
    for number, request_id in enumerate(ids):
        answers[request_id] = [number] * (number % 4 + 1)
        room.begin(request_id, request_id[0])
    for drafter in drafters.values():
        drafter.script = by_request(answers)
    drafts = await room.patient_step(*ids)
    assert [draft.token_ids for draft in drafts] == [answers[i] for i in ids]
    assert [draft.drafter for draft in drafts] == [i[0] for i in ids]
    for name, drafter in drafters.items():
        calls = [event for event in drafter.events if event[0] == "propose"]
        assert [[row[0] for row in call[1]] for call in calls] == [[f"{name}{i}" for i in range(5)]]
    await room.drafting.aclose()


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "answer",
    [[5] * 10_000, [-1, 2, -300], [2**40], (5, 6), ["not an id"], [None, 1.5]],
    ids=lambda answer: repr(answer)[:20],
)
async def test_lists_pass_raw_whatever_is_in_them(kind: type[Recorder], answer: Any) -> None:
    room = Room(guest=kind(by_request({"a": answer})))
    room.begin("a", "guest")
    draft = await room.lasting_step("a")
    assert draft.token_ids is answer
    assert (draft.drafter, draft.late, draft.faults) == ("guest", (), ())
    await room.drafting.aclose()


@pytest.mark.asyncio
@pytest.mark.parametrize("answer", [None, [], (), Proposal([]), iter(())])
async def test_no_tokens_is_an_honest_answer(answer: Any) -> None:
    room = Room(guest=InlineDrafter(by_request({"a": answer})))
    room.begin("a", "guest")
    (draft,) = await room.step("a")
    assert (draft.token_ids, draft.drafter, draft.faults) == (None, None, ())


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answer", "token_ids"),
    [
        (Proposal([3, 4], confidence=[0.5, 0.1]), [3, 4]),
        (np.array([3, 4], dtype=np.int32), [3, 4]),
        (collections.deque([3, 4]), [3, 4]),
        (range(3, 5), [3, 4]),
        (itertools.count(3), [3, 4, 5, 6, 7, 8, 9, 10, 11]),
    ],
    ids=["proposal", "array", "deque", "range", "endless"],
)
async def test_any_ordered_iterable_is_a_draft_cut_one_past_the_budget(
    answer: Any, token_ids: list[int]
) -> None:
    room = Room(guest=InlineDrafter(by_request({"a": answer})))
    room.begin("a", "guest")
    (draft,) = await room.step("a")
    assert draft.token_ids == token_ids
    assert draft.token_ids is not None
    assert all(type(token) is int for token in draft.token_ids)


@pytest.mark.asyncio
async def test_inline_drafters_alone_never_suspend_the_loop() -> None:
    room = Room(x=InlineDrafter(constant(1)), y=InlineDrafter(constant(2)))
    room.begin("a", "x")
    room.begin("b", "y")
    with pytest.raises(StopIteration) as returned:
        room.step("a", "b").send(None)
    assert [draft.token_ids for draft in returned.value.value] == [[1], [2]]


@pytest.mark.asyncio
async def test_the_first_drafter_of_the_chain_with_tokens_wins() -> None:
    room = Room(
        x=AsyncDrafter(constant(1)), y=InlineDrafter(constant(2)), z=BlockingDrafter(nothing)
    )
    room.begin("a", "x", "y")
    room.begin("b", "y", "x")
    room.begin("c", "z", "x", "y")
    drafts = await room.patient_step("a", "b", "c")
    assert [(draft.drafter, draft.token_ids) for draft in drafts] == [
        ("x", [1]),
        ("y", [2]),
        ("x", [1]),
    ]
    await room.drafting.aclose()


@pytest.mark.asyncio
async def test_a_row_that_is_served_is_not_sent_to_later_drafters() -> None:
    later, later_inline = AsyncDrafter(constant(2)), InlineDrafter(constant(3))
    room = Room(first=InlineDrafter(constant(1)), later=later, inline=later_inline)
    room.begin("a", "first", "later", "inline")
    await room.patient_step("a")
    assert "propose" not in later.heard_of("a")
    assert "propose" not in later_inline.heard_of("a")


@pytest.mark.asyncio
async def test_nobody_waits_for_a_drafter_whose_answer_is_not_needed() -> None:
    slow = AsyncDrafter(constant(2), delay_s=LONG_S)
    room = Room(quick=AsyncDrafter(constant(1)), slow=slow)
    room.begin("a", "quick", "slow")
    with anyio.fail_after(PATIENCE_S):
        (draft,) = await room.step("a", grant_s=LONG_S)
    assert (draft.drafter, draft.late) == ("quick", ())
    assert slow.num_cancelled == 1
    assert room.drafting.statistics()["slow"].late == 0


@pytest.mark.asyncio
async def test_acceptance_is_credited_to_the_maker_alone() -> None:
    x, y = InlineDrafter(), InlineDrafter()
    room = Room(x=x, y=y)
    room.begin("a", "x", "y")
    room.commit("a", [5, 6, 7], accepted=2, maker="y")
    assert x.events[-1] == ("observe", "a", [5, 6, 7], 0)
    assert y.events[-1] == ("observe", "a", [5, 6, 7], 2)


@pytest.mark.asyncio
async def test_a_drafter_hears_only_of_requests_that_chose_it() -> None:
    x, y = InlineDrafter(), InlineDrafter()
    room = Room(x=x, y=y)
    room.begin("a", "x")
    await room.step("a")
    room.drafting.end("a", "finished")
    assert y.events == []


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
async def test_a_drafter_hears_nothing_before_begin_and_nothing_after_end(
    kind: type[Recorder],
) -> None:
    drafter = kind(constant(1))
    room = Room(guest=drafter)
    early = DraftAsk("early", [1, 2], 8, ("guest",), None)
    room.begin("over", "guest")
    room.drafting.end("over", "cancelled")
    room.drafting.end("over", "cancelled")
    room.commit("over", [5])
    drafts = await room.drafting.collect([early, room.ask("over")], step_time_s=0.0)
    await room.drafting.aclose()
    assert [draft.token_ids for draft in drafts] == [None, None]
    assert room.drafting.statistics()["guest"].calls == 0
    assert drafter.heard_of("early") == []
    assert drafter.heard_of("over") == ["begin", "observe", "end"]


@pytest.mark.asyncio
async def test_sessions_count_requests_times_drafters_and_return_to_zero() -> None:
    room = Room(x=InlineDrafter(), y=AsyncDrafter(), z=BlockingDrafter())
    room.begin("a", "x", "y", "z")
    room.begin("b", "z")
    assert room.drafting.sessions == 4
    room.drafting.end("a", "finished")
    assert room.drafting.sessions == 1
    await room.drafting.aclose()
    assert room.drafting.sessions == 0


def test_a_live_request_cannot_begin_twice_and_an_ended_one_may_come_again() -> None:
    room = Room(guest=InlineDrafter())
    room.begin("a", "guest")
    with pytest.raises(ValueError, match="'a'"):
        room.begin("a", "guest")
    room.drafting.end("a", "finished")
    room.begin("a", "guest")
    assert room.drafting.sessions == 1


def test_a_chain_with_an_unknown_drafter_begins_nothing() -> None:
    drafter = InlineDrafter()
    drafting = Drafting({"guest": drafter})
    with pytest.raises(KeyError, match="stranger"):
        drafting.begin("a", [1], GREEDY, ("guest", "stranger"))
    assert drafter.events == []
    drafting.begin("a", [1], GREEDY, ("guest",))


@pytest.mark.asyncio
async def test_a_drafter_named_twice_is_told_and_asked_once() -> None:
    drafter = InlineDrafter(constant(1))
    room = Room(guest=drafter)
    room.begin("a", "guest", "guest")
    await room.step("a")
    room.drafting.end("a", "finished")
    assert drafter.heard_of("a") == ["begin", "observe", "propose", "end"]
    assert room.drafting.statistics()["guest"].rows == 1


@pytest.mark.asyncio
async def test_what_a_drafter_observed_does_not_change_with_the_callers_list() -> None:
    kept: list[Sequence[int]] = []

    class Keeping(InlineDrafter):
        def observe(self, request_id: str, tokens: Sequence[int], accepted: int) -> None:
            kept.append(tokens)

    room = Room(guest=Keeping())
    room.begin("a", "guest")
    run = [5, 6]
    room.drafting.observe("a", run, 0, None)
    run.clear()
    assert list(kept[-1]) == [5, 6]


@pytest.mark.asyncio
async def test_the_context_of_a_draft_does_not_grow_with_the_text() -> None:
    kept: list[Any] = []

    def keep(batch: Any, budgets: Any) -> Any:
        kept.extend(batch)
        return [None]

    room = Room(guest=InlineDrafter(keep))
    room.begin("a", "guest", prompt=[1, 2, 3])
    await room.step("a")
    room.commit("a", [5, 6])
    assert list(kept[0].tokens) == [1, 2, 3, 4]


@pytest.mark.asyncio
async def test_calls_of_a_blocking_drafter_share_one_thread_of_its_own() -> None:
    first, second = BlockingDrafter(), BlockingDrafter()
    room = Room(first=first, second=second)
    room.begin("a", "first", "second")
    await room.patient_step("a")
    await room.drafting.aclose()
    assert (first.threads, second.threads) == ({"drafter-first"}, {"drafter-second"})


@pytest.mark.asyncio
async def test_statistics_count_calls_rows_tokens_and_empty_answers() -> None:
    room = Room(guest=InlineDrafter(by_request({"a": [1, 2, 3], "b": None, "c": [4]})))
    for request_id in "abc":
        room.begin(request_id, "guest")
    await room.step("a", "b", "c")
    await room.step("b")
    seen = room.drafting.statistics()["guest"]
    assert (seen.calls, seen.rows, seen.draft_tokens, seen.empty) == (2, 4, 4, 2)
    assert (seen.late, seen.faults, seen.stale, seen.breaker_open) == (0, 0, 0, False)


@pytest.mark.asyncio
async def test_draft_time_is_what_the_row_waited() -> None:
    inline, slow = InlineDrafter(), AsyncDrafter()
    room = Room(inline=inline, slow=slow)

    def tick(batch: Any, budgets: Any) -> Any:
        room.clock.now += 0.25
        return [[1] for _ in batch]

    inline.script = slow.script = tick
    room.begin("a", "inline")
    room.begin("b", "slow")
    drafts = await room.patient_step("a", "b")
    assert [draft.draft_time_s for draft in drafts] == [0.25, 0.5]
    seen = room.drafting.statistics()
    assert (seen["inline"].time_s, seen["slow"].time_s) == (0.25, 0.25)


def test_every_scripted_kind_has_the_full_form() -> None:
    assert all(isinstance(kind(), Drafter) for kind in KINDS)
