"""The promise of the numbers that a call gets back: they add up, whatever drafts and ends it.

What they must come to is counted again from what the device found, step by step, and from the
tokens that came out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from drafters.contract import DraftContext, Drafter
from drafters.ngram import NgramDrafter
from specd.engine.events import DrafterTally
from specd.engine.params import StructureParams
from specd.engine.request import Request
from specd.engine.step_types import PaddedBatch
from specd.structure.matching import SequenceStructure
from tests.support.drafters import InlineDrafter, OracleDrafter, WrongDrafter, constant, raising
from tests.support.null_device import NullDevice, NullModel
from tests.support.requests import EOS_ID, VOCAB_SIZE, Answer, make_request
from tests.unit.engine.loop_support import PACKED, RECTANGLE, engine_room, expected, whole_text
from tests.unit.structure.support import sequences

GUESTS = ("oracle", "two", "wrong", "ragged", "constant", "illegal", "raising", "ngram")
CHAINS = [(), *((one,) for one in GUESTS), *((one, "oracle") for one in GUESTS[1:])]

STRUCTURES = (
    StructureParams("regex", ("[ab]{3}(c [ab]{2}){0,9}",)),
    StructureParams("choice", ("a", "a b", "abracadabra", "abracadabra a")),
)
# A structure decides its own end: calls that ask otherwise are refused at the border.
FREE_ENDS = {"ignore_eos": False, "min_new_tokens": 0}

OPTIONS = st.fixed_dictionaries({
    "seed": st.integers(0, 3),
    "max_new_tokens": st.sampled_from([1, 2, 9, 30, 40, None]),
    "context_left": st.sampled_from([50, 50, 50, 50, 1, 9]),
    "min_new_tokens": st.sampled_from([0, 0, 1, 6]),
    "ignore_eos": st.booleans(),
    "stop_strings": st.sampled_from([(), (), (), ("ab", "ca"), ("a",)]),
    "stop_token_ids": st.sampled_from([(), (), (99,), (EOS_ID,)]),
    "include_stop": st.booleans(),
    "num_sequences": st.sampled_from([1, 1, 2, 5]),
    "drafters": st.sampled_from(CHAINS),
    "max_draft_tokens": st.sampled_from([1, 3, 9]),
    "prompt_logprobs": st.sampled_from([None, None, 1]),
    "top_logprobs": st.sampled_from([None, 0, 2]),
    "frequency_penalty": st.sampled_from([0.0, 0.0, 0.5]),
    "structure": st.sampled_from([None, None, None, *STRUCTURES]),
})
MEDDLING = st.tuples(st.sampled_from(["abort", "cancel", "poison", "raise"]), st.integers(0, 5))


@dataclass(frozen=True)
class Day:
    """A daemon's day. meddling: what happens during which step, to which of the calls."""

    calls: list[tuple[int, dict[str, Any]]]  # tokens of the prompt, options
    meddling: dict[int, tuple[str, int]]
    num_pages: int
    is_rectangle: bool
    eos_every: int


DAYS = st.builds(
    Day,
    calls=st.lists(
        st.tuples(st.sampled_from([1, 20, 31, 33, 50]), OPTIONS), min_size=2, max_size=5
    ),
    meddling=st.dictionaries(st.integers(1, 12), MEDDLING, max_size=3),
    num_pages=st.sampled_from([4, 4, 5, 200]),
    is_rectangle=st.booleans(),
    eos_every=st.sampled_from([1000, 20, 5]),
)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(DAYS)
def test_the_numbers_add_up_whatever_drafts_and_whatever_ends_it(day: Day) -> None:
    with sequences() as make_structure:
        asyncio.run(live_through(day, make_structure))


MakeStructure = Callable[[StructureParams], SequenceStructure]


def call(name: str, length: int, options: dict[str, Any], make: MakeStructure) -> Request:
    asked = dict(options)
    structure = asked.pop("structure")
    if structure is not None:
        asked |= FREE_ENDS | {"structures": [make(structure) for _ in range(5)]}
    return make_request(name, [7 + place % 3 for place in range(length)], **asked)


async def alone(request: Request, model: NullModel) -> tuple[list[list[int]], list[list[int]]]:
    """What each sequence gets where nothing drafts and nobody is beside it; and texts for oracles.

    These go on behind the end, as the model would where that is known.
    """
    own = request.generation.sequences
    if request.structure is None:
        return [expected(one, model) for one in own], [whole_text(one, model) for one in own]
    prompt = list(request.tokens)
    async with engine_room(model=model) as room:
        answer = await room.answer(request)
    right = [answer.sequence(index).token_ids for index in range(len(own))]
    return right, [prompt + ids + [97, 98, 97, 98] for ids in right]


async def live_through(day: Day, make: MakeStructure) -> None:
    model = NullModel(eos_id=EOS_ID, eos_every=day.eos_every)
    right, texts = dict[str, list[list[int]]](), list[list[int]]()
    for n, (length, options) in enumerate(day.calls):
        undrafted = call(f"r{n}", length, options | {"drafters": ()}, make)
        right[f"r{n}"], more = await alone(undrafted, model)
        texts += more
    requests = [call(f"r{n}", *one, make) for n, one in enumerate(day.calls)]
    layout = RECTANGLE if day.is_rectangle else PACKED
    async with engine_room(
        guests(texts), model=model, layout=layout, num_pages=day.num_pages, max_rows=6
    ) as room:

        async def meddle(batch: PaddedBatch) -> None:
            what, whom = day.meddling.get(len(room.device.batches), ("nothing", 0))
            victim = requests[whom % len(requests)].generation
            if what == "abort":
                room.engine.abort(victim.request_id)
            elif what == "cancel":
                room.engine.cancel(victim)
            elif what == "poison":
                room.device.poisoned.add(victim.request_id)
            elif what == "raise":
                raise RuntimeError

        room.device.during = meddle
        answers = await room.answers(requests)
        accepted = room.engine.accepted_by_drafter
    told = Counter[str]()
    for request, answer in zip(requests, answers, strict=True):
        check_tokens(request, answer, right[request.request_id])
        if answer.error is None and not answer.cut:
            check_numbers(request, answer, room.device)
            for name, counts in answer.finished.speculation.by_drafter.items():
                told[name] += counts.accepted_draft_tokens
    assert all(told[name] <= accepted[name] for name in told)


def guests(texts: Sequence[Sequence[int]]) -> dict[str, Drafter]:
    oracle = OracleDrafter(texts)

    def ragged(batch: Sequence[DraftContext], budgets: Sequence[int]) -> list[list[int]]:
        """So many right tokens, then wrong ones, by the length of the text."""
        rows = zip(batch, oracle.propose(batch, budgets), strict=True)
        return [[*(right or [])[: len(row.tokens) % 4], 98, 98] for row, right in rows]

    return {
        "oracle": oracle,
        "two": OracleDrafter(texts, size=2),
        "wrong": WrongDrafter(texts, VOCAB_SIZE),
        "ragged": InlineDrafter(ragged),
        "constant": InlineDrafter(constant(97, 0, EOS_ID)),
        "illegal": InlineDrafter(constant(97, VOCAB_SIZE)),
        "raising": InlineDrafter(raising(ValueError())),
        "ngram": NgramDrafter(),
    }


def check_tokens(request: Request, answer: Answer, right: Sequence[list[int]]) -> None:
    """What came out is the beginning of what each sequence gets alone, with as much beside it."""
    asked = request.params.output
    for index, ids in enumerate(right):
        own = answer.sequence(index)
        assert own.token_ids == ids[: len(own.token_ids)]
        wanted = [] if asked.top_logprobs is None else own.token_ids
        assert [one.token_id for one in own.logprobs] == wanted


@dataclass
class Sums:
    """What a call's numbers must come to."""

    histogram: Counter[int]
    draft_tokens: int = 0
    cut: int = 0


def check_numbers(request: Request, answer: Answer, device: NullDevice) -> None:
    sums = Sums(Counter())
    for index, sequence in enumerate(request.generation.sequences):
        num_tokens = len(answer.sequence(index).token_ids)
        for row, result in rows_of(device, sequence.request_id):
            if num_tokens == 0:  # the rest was computed while the call was ended
                break
            counted = min(result.accepted, num_tokens)
            sums.histogram[counted] += 1
            sums.draft_tokens += row.draft_len
            sums.cut += counted == num_tokens
            num_tokens = max(0, num_tokens - result.accepted - 1)
        assert num_tokens == 0
    stats, usage = answer.finished.speculation, answer.finished.usage
    total = stats.total
    found = dict(enumerate(total.accepted_length_histogram))
    assert {length: number for length, number in found.items() if number} == sums.histogram
    assert total.draft_tokens == sums.draft_tokens
    assert usage.num_prompt_tokens == request.num_prompt_tokens
    assert usage.num_completion_tokens == len(answer.token_ids)
    assert usage.num_completion_tokens == (
        total.accepted_draft_tokens + total.verify_steps - sums.cut
    )
    check_steps(answer)
    for counts in (total, *stats.by_drafter.values()):
        check_histogram(counts)


def rows_of(device: NullDevice, name: str) -> list[tuple[Any, Any]]:
    """The rows of a sequence that sampled, with what was found."""
    return [
        (row, result)
        for batch, results in zip(device.batches, device.results, strict=True)
        for row, result in zip(batch.rows, results, strict=True)
        if row.request_id == name and result is not None and result.token_ids
    ]


def check_steps(answer: Answer) -> None:
    """The steps that deltas tell are those that the sums count."""
    stats = answer.finished.speculation
    steps = [step for delta in answer.deltas for step in delta.steps]
    for name, counts in ((None, stats.total), *stats.by_drafter.items()):
        own = [step for step in steps if name is None or step.drafter == name]
        assert len(own) == counts.verify_steps
        assert sum(step.num_draft_tokens for step in own) == counts.draft_tokens
        assert sum(step.num_accepted for step in own) == counts.accepted_draft_tokens


def check_histogram(counts: DrafterTally) -> None:
    histogram = counts.accepted_length_histogram
    assert sum(histogram) == counts.verify_steps
    assert sum(i * n for i, n in enumerate(histogram)) == counts.accepted_draft_tokens
    assert counts.accepted_draft_tokens <= counts.draft_tokens
