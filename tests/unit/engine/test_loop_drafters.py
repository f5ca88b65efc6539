"""Promises of the loop to and about its drafters: what they hear, and that they change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from drafters.contract import DraftContext
from specd.engine.step_types import PaddedBatch
from specd.errors import NonFiniteLogits
from tests.support.drafters import (
    AsyncDrafter,
    BlockingDrafter,
    InlineDrafter,
    OracleDrafter,
    Recorder,
    Script,
    constant,
    raising,
)
from tests.support.requests import VOCAB_SIZE, make_request
from tests.unit.engine.loop_support import (
    check_heard,
    engine_room,
    expected,
    mixed_requests,
    whole_text,
)

BIG = 10**30


class ShyList(list[int]):
    """Cannot even be asked for its length."""

    def __len__(self) -> int:
        raise RuntimeError("no")

    def __iter__(self) -> Any:
        raise RuntimeError("no")


def per_row(answer: Callable[[DraftContext, int], Any]) -> Script:
    return lambda batch, budgets: list(map(answer, batch, budgets))


LIES: dict[str, Script] = {
    "raises": raising(ValueError("broken")),
    "raises no Exception": raising(SystemExit(3)),
    "too few rows": lambda batch, budgets: [],
    "no list": lambda batch, budgets: 7,
    "nothing": lambda batch, budgets: None,
    "too long": constant(*[97] * 10_000),
    "negative": constant(97, -1, 97),
    "beyond the vocabulary": constant(97, VOCAB_SIZE, BIG),
    "booleans": constant(True, False),
    "floats": constant(97.0, float("nan")),  # type: ignore[arg-type]
    "text": per_row(lambda row, budget: "abc"),
    "an error per row": per_row(lambda row, budget: ValueError("no idea")),
    "a list that raises": per_row(lambda row, budget: ShyList([97])),
    "one row of two is sound": lambda batch, budgets: [
        [97] if n % 2 else [-1] for n in range(len(batch))
    ],
}
KINDS: list[type[Recorder]] = [InlineDrafter, AsyncDrafter, BlockingDrafter]


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lie", LIES)
async def test_a_drafter_that_lies_changes_no_token(kind: type[Recorder], lie: str) -> None:
    requests = mixed_requests(12, drafters=("guest",))
    right = [expected(request) for request in requests]
    async with engine_room({"guest": kind(LIES[lie])}) as room:
        answers = await room.answers(requests)
    assert [answer.token_ids for answer in answers] == right


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["begin", "observe", "end"])
async def test_a_drafter_that_fails_when_told_changes_no_token(
    kind: type[Recorder], method: str
) -> None:
    requests = mixed_requests(12, drafters=("guest",))
    right = [expected(request) for request in requests]
    guest = kind(constant(97), failing=[method])
    async with engine_room({"guest": guest}) as room:
        answers = await room.answers(requests)
    assert [answer.token_ids for answer in answers] == right


@pytest.mark.asyncio
async def test_a_late_drafter_is_counted_and_its_rows_go_on_without_it() -> None:
    requests = [
        make_request(f"r{n}", [n], max_new_tokens=12, ignore_eos=True, drafters=("late",))
        for n in range(3)
    ]
    right = [expected(request) for request in requests]
    async with engine_room({"late": AsyncDrafter(constant(97), delay_s=60.0)}) as room:
        answers = await room.answers(requests)
        seen = room.engine.drafting.statistics()["late"]
    assert [answer.token_ids for answer in answers] == right
    assert seen.late >= 3
    assert seen.breaker_open
    for answer in answers:
        assert answer.finished.speculation.by_drafter["late"].late >= 3
        assert answer.finished.speculation.total.draft_tokens == 0


@pytest.mark.asyncio
async def test_an_answer_that_comes_a_step_late_is_never_used() -> None:
    request = make_request(max_new_tokens=30, ignore_eos=True, drafters=("slow",))
    right = expected(request)
    slow = BlockingDrafter(constant(97))
    slow.gate.clear()

    async def open_gate(batch: PaddedBatch) -> None:
        if len(room.device.batches) == 3:
            slow.gate.set()

    async with engine_room({"slow": slow}) as room:
        room.device.during = open_gate
        answer = await room.answer(request)
    assert answer.token_ids == right


# --- what a drafter hears ---


class Watcher(InlineDrafter):
    """An oracle that writes down what it hears."""

    def __init__(self, oracle: OracleDrafter) -> None:
        super().__init__()
        self._oracle = oracle

    def propose(self, batch: Sequence[DraftContext], budgets: Sequence[int]) -> Any:
        self.note_propose(batch, budgets)
        return self._oracle.propose(batch, budgets)


@pytest.mark.asyncio
@pytest.mark.parametrize("num_pages", [5, 200])
@pytest.mark.parametrize("shift", [0, 1])
async def test_a_drafter_hears_committed_tokens_only_each_once_and_in_order(
    num_pages: int, shift: int
) -> None:
    requests = mixed_requests(24, drafters=("w",), longest=50)
    texts = [whole_text(request) for request in requests]
    watcher = Watcher(OracleDrafter(texts, shift=shift, num_ids=VOCAB_SIZE))
    async with engine_room({"w": watcher}, num_pages=num_pages, max_positions=32) as room:
        answers = await room.answers(requests)
    for request, answer in zip(requests, answers, strict=True):
        check_heard(watcher, request, answer)
        mine = ("observe", request.request_id)
        observed = [event[3] for event in watcher.events if event[:2] == mine]
        assert sum(observed) == answer.finished.speculation.total.accepted_draft_tokens


@pytest.mark.asyncio
async def test_a_drafter_hears_why_a_request_ended() -> None:
    watcher = InlineDrafter()
    names = ["finished", "aborted", "cancelled", "failed"]
    requests = {
        name: make_request(name, [1], max_new_tokens=6 if name == "finished" else 99,
                           ignore_eos=True, drafters=("w",))
        for name in names
    }  # fmt: skip

    def meddle() -> None:
        room.engine.abort("aborted")
        room.engine.cancel(requests["cancelled"].generation)
        room.device.poisoned.add("failed")

    async with engine_room({"w": watcher}) as room:
        room.during_step(3, meddle)
        answers = await room.answers(list(requests.values()))
    assert isinstance(answers[3].error, NonFiniteLogits)
    ends = {event[1]: event[2] for event in watcher.events if event[0] == "end"}
    assert ends == {
        "finished": "finished",
        "aborted": "cancelled",
        "cancelled": "cancelled",
        "failed": "failed",
    }
    for name in names:
        assert watcher.heard_of(name).count("end") == 1
        assert watcher.heard_of(name)[-1] == "end"


@pytest.mark.asyncio
async def test_a_budget_is_what_can_be_used_of_a_draft() -> None:
    watcher = InlineDrafter(constant(*[97] * 20))
    request = make_request(max_new_tokens=12, ignore_eos=True, drafters=("w",), max_draft_tokens=5)
    async with engine_room({"w": watcher}) as room:
        await room.answer(request)
    for event in watcher.events:
        if event[0] == "propose":
            ((_, context),), (budget,) = event[1], event[2]
            assert budget == min(5, 12 - (len(context) - 3) - 1)
