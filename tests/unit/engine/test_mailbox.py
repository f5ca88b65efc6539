"""Promises of the mailbox: order, one end, and a slow reader that loses nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.engine.events import (
    Delta,
    Event,
    Finished,
    FinishReason,
    SequenceFinished,
    SpeculationStep,
    Started,
    Usage,
)
from specd.engine.mailbox import MAX_MERGED, EndOfEvents, Mailbox, merge
from specd.engine.params import OutputParams
from specd.engine.step_types import TokenLogprob
from specd.engine.tally import Tally
from specd.errors import StepFailed
from specd.server.message_sizes import MAX_MESSAGE_BYTES
from specd.server.wire import response_from
from tests.support.requests import read_all

STARTED = Started("a", "m", 3, 0, 0, 0.0, "f", (0,))
SEQUENCE = SequenceFinished(FinishReason.EOS_TOKEN)
EVERYTHING = OutputParams(
    text=True, token_ids=True, skip_special_tokens=True, speculation_steps=True, top_logprobs=20
)


def delta(number: int, size: int = 1, sequence: int = 0) -> Delta:
    """The run that brings the count of its sequence to `number` tokens."""
    ids = tuple(range(number - size, number))
    step = SpeculationStep("d", size, size - 1)
    logprobs = tuple(TokenLogprob(token, -0.5 * token, 1) for token in ids)
    text = "".join(f"{token}," for token in ids)
    return Delta(text, ids, number, (step,), sequence, logprobs)


def drain(box: Mailbox) -> list[Event]:
    events = []
    while (event := box.get_nowait()) is not None:
        events.append(event)
    return events


def test_events_come_out_in_the_order_in_which_they_went_in() -> None:
    box = Mailbox()
    for event in (STARTED, delta(1), SEQUENCE):
        box.put_nowait(event)
    assert drain(box) == [STARTED, delta(1), SEQUENCE]


def test_unread_deltas_come_out_as_one() -> None:
    box = Mailbox()
    box.put_nowait(delta(1))
    box.put_nowait(delta(4, size=3))
    assert box.get_nowait() == Delta(
        text="0,1,2,3,",
        token_ids=(0, 1, 2, 3),
        num_completion_tokens=4,
        steps=(SpeculationStep("d", 1, 0), SpeculationStep("d", 3, 2)),
        logprobs=tuple(TokenLogprob(token, -0.5 * token, 1) for token in range(4)),
    )
    assert box.statistics() == (0, 1)


def test_a_delta_that_was_read_is_not_told_again() -> None:
    box = Mailbox()
    box.put_nowait(delta(1))
    assert box.get_nowait() == delta(1)
    box.put_nowait(delta(2))
    assert box.get_nowait() == delta(2)
    assert box.get_nowait() is None


def test_deltas_are_not_merged_across_another_event() -> None:
    box = Mailbox()
    for event in (delta(1), delta(2), SEQUENCE, delta(3)):
        box.put_nowait(event)
    assert drain(box) == [merge([delta(1), delta(2)]), SEQUENCE, delta(3)]


def test_an_empty_mailbox_has_nothing_and_no_end() -> None:
    assert Mailbox().get_nowait() is None


def test_the_end_comes_behind_what_is_queued_and_stays() -> None:
    box = Mailbox()
    box.put_nowait(delta(1))
    box.close()
    assert box.get_nowait() == delta(1)
    for _ in range(2):
        with pytest.raises(EndOfEvents):
            box.get_nowait()


def test_an_error_comes_behind_what_is_queued_and_stays() -> None:
    box = Mailbox()
    error = StepFailed()
    box.put_nowait(delta(1))
    box.close(error)
    assert box.get_nowait() == delta(1)
    for _ in range(2):
        with pytest.raises(StepFailed) as raised:
            box.get_nowait()
        assert raised.value is error


def test_the_first_end_is_the_only_one() -> None:
    clean, failed = Mailbox(), Mailbox()
    clean.close()
    clean.close(StepFailed())
    failed.close(StepFailed())
    failed.close()
    with pytest.raises(EndOfEvents):
        clean.get_nowait()
    with pytest.raises(StepFailed):
        failed.get_nowait()


def test_nothing_follows_the_end() -> None:
    box = Mailbox()
    box.close()
    box.put_nowait(delta(1))
    assert box.statistics().waiting == 0
    with pytest.raises(EndOfEvents):
        box.get_nowait()


@pytest.mark.asyncio
async def test_a_reader_that_waits_is_woken_by_an_event_and_by_the_end() -> None:
    box = Mailbox()
    for event in (STARTED, delta(1), SEQUENCE, Finished(Usage(3, 0, 1), Tally().frozen())):
        reader = asyncio.create_task(box.get())
        await asyncio.sleep(0)  # it waits
        box.put_nowait(event)
        assert await asyncio.wait_for(reader, 10) == event
    reader = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    box.close()
    with pytest.raises(EndOfEvents):
        await asyncio.wait_for(reader, 10)


@pytest.mark.asyncio
async def test_iteration_ends_behind_the_last_event() -> None:
    box = Mailbox()
    whole: list[Event] = [STARTED, delta(1), SEQUENCE, Finished(Usage(3, 0, 1), Tally().frozen())]
    for event in whole:
        box.put_nowait(event)
    box.close()
    assert (await asyncio.wait_for(read_all(box), 10)).events == whole


@pytest.mark.asyncio
async def test_iteration_raises_the_error_behind_the_last_event() -> None:
    box = Mailbox()
    box.put_nowait(STARTED)
    box.close(StepFailed())
    seen = []
    with pytest.raises(StepFailed):
        async for event in box:
            seen.append(event)  # noqa: PERF401
    assert seen == [STARTED]


@pytest.mark.asyncio
async def test_a_reader_that_is_cancelled_while_it_waits_loses_nothing() -> None:
    box = Mailbox()
    reader = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    box.put_nowait(delta(1))
    assert await asyncio.wait_for(box.get(), 10) == delta(1)


@settings(deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 8), max_size=30),
    reads=st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_however_slow_the_reader_the_deltas_joined_are_the_whole(
    sizes: list[int], reads: list[bool]
) -> None:
    box = Mailbox()
    written, taken, total = [], list[Event](), 0
    for size, read in zip(sizes, reads, strict=False):
        total += size
        written.append(delta(total, size))
        box.put_nowait(written[-1])
        if read:
            taken += drain(box)
    taken += drain(box)
    deltas = [event for event in taken if isinstance(event, Delta)]
    assert not written or merge(deltas) == merge(written)
    assert box.statistics() == (0, len(written) - len(deltas))


@settings(deadline=None, derandomize=True)
@given(
    writes=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40),
    ended=st.sets(st.integers(0, 3)),
)
def test_sequences_join_however_they_alternate_and_each_keeps_its_order(
    writes: list[tuple[int, bool]], ended: set[int]
) -> None:
    box = Mailbox()
    box.put_nowait(STARTED)
    written: dict[int, list[Event]] = {sequence: [] for sequence in range(4)}
    taken = list[Event]()
    for sequence, read in writes:
        event = delta(len(written[sequence]) + 1, sequence=sequence)
        written[sequence].append(event)
        box.put_nowait(event)
        if read:
            taken += drain(box)
    for sequence in sorted(ended):
        written[sequence].append(SequenceFinished(FinishReason.EOS_TOKEN, sequence_index=sequence))
        box.put_nowait(written[sequence][-1])
    box.put_nowait(Finished(Usage(3, 0, 1), Tally().frozen()))
    last = drain(box)
    taken += last
    assert taken[0] is STARTED
    assert isinstance(taken[-1], Finished)
    for sequence, events in written.items():
        own = [one for one in taken if not isinstance(one, Started | Finished)]
        own = [one for one in own if one.sequence_index == sequence]
        assert joined(own) == joined(events)
        assert sum(isinstance(one, Delta) and one in last for one in own) <= 1


def joined(events: Sequence[Event]) -> list[Event]:
    """All deltas as one, and what stood behind them."""
    deltas = [event for event in events if isinstance(event, Delta)]
    behind = [event for event in events if not isinstance(event, Delta)]
    assert not behind or list(events[-1:]) == behind
    return [merge(deltas), *behind] if deltas else [*behind]


def test_readers_that_are_behind_hear_of_every_sequence_in_turn() -> None:
    box = Mailbox()
    long = Delta("x" * MAX_MERGED, (1,), 1)
    for index in range(9):
        box.put_nowait(replace(long, sequence_index=index % 3, num_completion_tokens=index))
    told = [(event.sequence_index, event.num_completion_tokens) for event in deltas_of(box)]
    assert told == [(0, 0), (1, 1), (2, 2), (0, 3), (1, 4), (2, 5), (0, 6), (1, 7), (2, 8)]


def deltas_of(box: Mailbox) -> list[Delta]:
    return [event for event in drain(box) if isinstance(event, Delta)]


def test_log_probabilities_count_for_the_size_of_a_message() -> None:
    box = Mailbox()
    best = tuple((60_000 + n, -0.25 * n) for n in range(20))
    event = Delta("", (60_000,), 1, logprobs=(TokenLogprob(60_000, -0.25, 1, best),))
    for _ in range(20_000):
        box.put_nowait(event)
    taken = deltas_of(box)
    sizes = [response_from(event, EVERYTHING).ByteSize() for event in taken]
    assert sum(sizes) > MAX_MESSAGE_BYTES > 4 * max(sizes)
    assert sum(len(event.logprobs) for event in taken) == 20_000


def test_no_number_of_unread_deltas_makes_one_that_is_larger_than_a_message_may_be() -> None:
    box = Mailbox()
    step = SpeculationStep("somebody_s_module_of_drafters:the_best_of_them", 8, 7)
    written = [Delta("passengers" * 8, (60_000,) * 8, number, (step,)) for number in range(50_000)]
    for event in written:
        box.put_nowait(event)
    taken = [event for event in drain(box) if isinstance(event, Delta)]
    sizes = [response_from(event, EVERYTHING).ByteSize() for event in taken]
    assert sum(sizes) > MAX_MESSAGE_BYTES > 4 * max(sizes)
    assert merge(taken) == merge(written)


def test_a_hundred_thousand_unread_deltas_cost_what_ten_times_ten_thousand_do() -> None:
    def cost_s(num_deltas: int) -> float:
        box = Mailbox()
        event = Delta("x", (1,), 1)
        started = time.process_time()
        for _ in range(num_deltas):
            box.put_nowait(event)
        whole = merge([event for event in drain(box) if isinstance(event, Delta)])
        assert len(whole.text) == len(whole.token_ids) == num_deltas
        return time.process_time() - started

    small = min(cost_s(10_000) for _ in range(3))
    # Linear is 10 times as much; quadratic would be 100. Caches and the collector take a share.
    assert cost_s(100_000) < 40 * small + 0.05
