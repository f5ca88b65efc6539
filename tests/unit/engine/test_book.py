"""Promises of the books: who waits, who runs, and that whoever is gone owns nothing."""

from __future__ import annotations

from contextlib import suppress

import pytest

from drafters.contract import Drafter
from specd.engine.book import Book
from specd.engine.drafting import Drafting
from specd.engine.events import (
    Delta,
    Event,
    Finished,
    FinishReason,
    SequenceFinished,
    Started,
    Usage,
)
from specd.engine.facts import ModelFacts
from specd.engine.generation import EndCause
from specd.engine.mailbox import EndOfEvents
from specd.engine.output import Ending
from specd.engine.request import Request
from specd.errors import (
    DuplicateRequest,
    NotServing,
    OutOfPages,
    QueueFull,
    RequestRefused,
    StepFailed,
)
from specd.kv.pages import PAGE_SIZE, IntegrityError
from tests.support.drafters import InlineDrafter
from tests.support.requests import make_request

ENDING = Ending(FinishReason.MAX_TOKENS)
FACTS = ModelFacts("m", 512, "f")
STARTED = Started("a", "m", 3, 0, 0, 1.5, "f", (0,))


class Desk:
    """A book with a drafter that writes down what it hears, and checks for what ended."""

    def __init__(self, *, num_pages: int = 4, max_rows: int = 2, max_waiting: int = 2) -> None:
        self.drafter = InlineDrafter()
        drafters: dict[str, Drafter] = {"d": self.drafter}
        self.drafting = Drafting(drafters)
        self.book = Book(
            self.drafting,
            FACTS,
            num_pages=num_pages,
            max_rows=max_rows,
            max_waiting=max_waiting,
            clock=lambda: 1.5,
        )

    def submitted(self, name: str, prompt: int = 3) -> Request:
        request = make_request(name, [1] * prompt, drafters=("d",))
        self.book.submit(request.generation)
        return request

    def running(self, name: str) -> Request:
        """A request that runs, with a page and one answer token."""
        request = self.submitted(name)
        self.book.admit(request)
        self.book.pages.grow(request.pages, request.known)
        request.output.push(97)
        request.tokens.append(97)
        return request

    def assert_nothing_left(self) -> None:
        assert self.book.live() == []
        assert (list(self.book.waiting), self.book.running) == ([], [])
        assert self.book.slots_used == 0
        assert self.drafting.sessions == 0
        assert self.book.pages.statistics().used == 0
        self.book.check_integrity()


def events_of(request: Request) -> list[Event]:
    """What its reader gets; raises what ended the stream unless it ended cleanly."""
    events: list[Event] = []
    with suppress(EndOfEvents):
        while (event := request.generation.mailbox.get_nowait()) is not None:
            events.append(event)
        raise AssertionError("the stream has no end")
    return events


def test_a_submitted_request_waits_and_owns_nothing() -> None:
    desk = Desk()
    request = desk.submitted("a")
    assert list(desk.book.waiting) == [request]
    assert desk.book.find("a") is request.generation
    assert (desk.book.slots_used, desk.drafting.sessions) == (0, 0)


def test_an_id_is_free_again_once_its_request_has_ended() -> None:
    desk = Desk()
    request = desk.running("a")
    with pytest.raises(DuplicateRequest):
        desk.submitted("a")
    desk.book.finish(request, ENDING)
    assert desk.submitted("a") is not request


def test_the_queue_is_bounded_behind_the_free_slots() -> None:
    desk = Desk(max_rows=2, max_waiting=2)
    for name in ("slot one", "slot two", "first", "second"):
        desk.submitted(name)
    with pytest.raises(QueueFull) as refused:
        desk.submitted("third")
    assert refused.value.retry_after_s > 0
    desk.book.admit(desk.book.waiting[0])
    desk.book.admit(desk.book.waiting[0])
    with pytest.raises(QueueFull):
        desk.submitted("third")


def test_a_prompt_larger_than_the_pool_is_refused() -> None:
    desk = Desk(num_pages=1)
    with pytest.raises(OutOfPages, match="32"):
        desk.submitted("a", prompt=PAGE_SIZE)
    desk.submitted("b", prompt=PAGE_SIZE - 1)


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_refusal_changes_nothing(name: str) -> None:
    desk = Desk(max_rows=1, max_waiting=0)
    first = desk.submitted("a")
    with pytest.raises(RequestRefused):
        desk.submitted(name)
    assert desk.book.live() == [first.generation]
    assert list(desk.book.waiting) == [first]


def test_a_draining_book_refuses_with_its_reason() -> None:
    desk = Desk()
    desk.book.refusing = "draining"
    with pytest.raises(NotServing, match="draining"):
        desk.submitted("a")


def test_admission_gives_the_lowest_free_slot_and_begins_the_drafters() -> None:
    desk = Desk(max_rows=3)
    a, b, _ = desk.running("a"), desk.running("b"), desk.running("c")
    desk.book.finish(b, ENDING)
    desk.book.finish(a, ENDING)
    assert desk.running("d").slot == 0
    assert desk.running("e").slot == 1
    assert desk.drafter.heard_of("d") == ["begin"]


def test_a_preempted_request_keeps_its_tokens_and_its_drafters_and_goes_to_the_front() -> None:
    desk = Desk()
    request = desk.running("a")
    waiting = desk.submitted("b")
    request.computed = 3
    tokens = list(request.tokens)
    desk.book.preempt(request)
    assert list(desk.book.waiting) == [request, waiting]
    assert (request.slot, request.pages, request.computed) == (None, [], 0)
    assert request.tokens == tokens
    assert desk.drafting.sessions == 1
    desk.book.check_integrity()


def test_a_resumed_request_is_no_new_one_to_its_reader_and_its_drafters() -> None:
    desk = Desk()
    request = desk.running("a")
    desk.book.preempt(request)
    desk.book.admit(request)
    desk.book.finish(request, ENDING)
    assert [type(event) for event in events_of(request)] == [Started, SequenceFinished, Finished]
    assert desk.drafter.heard_of("a") == ["begin", "end"]


def test_a_finished_stream_ends_with_its_reason_and_its_counts() -> None:
    desk = Desk()
    request = desk.running("a")
    desk.book.finish(request, Ending(FinishReason.STOP_STRING, matched_string="x"))
    assert events_of(request) == [
        STARTED,
        SequenceFinished(FinishReason.STOP_STRING, None, "x"),
        Finished(Usage(3, 0, 1), request.generation.tally.frozen()),
    ]
    assert desk.drafter.events[-1] == ("end", "a", "finished")
    desk.assert_nothing_left()


def test_a_failed_stream_ends_with_its_error() -> None:
    desk = Desk()
    request = desk.running("a")
    desk.book.fail(request.generation, StepFailed())
    with pytest.raises(StepFailed):
        events_of(request)
    assert desk.drafter.events[-1] == ("end", "a", "failed")
    desk.assert_nothing_left()


def test_a_request_that_waits_can_fail() -> None:
    desk = Desk()
    request = desk.submitted("a")
    desk.book.fail(request.generation, StepFailed())
    with pytest.raises(StepFailed):
        events_of(request)
    assert desk.drafter.events == []
    desk.assert_nothing_left()


def test_an_aborted_stream_ends_cleanly_with_the_text_that_was_held_back() -> None:
    desk = Desk()
    request = make_request("a", stop_strings=("abc",))
    desk.book.submit(request.generation)
    desk.book.admit(request)
    request.output.push(97)
    request.generation.end_cause = EndCause.ABORTED
    desk.book.drop_ended()
    assert events_of(request) == [
        STARTED,
        Delta("a", (), 1),
        SequenceFinished(FinishReason.ABORTED),
        Finished(Usage(3, 0, 1), request.generation.tally.frozen()),
    ]
    desk.assert_nothing_left()


@pytest.mark.parametrize("state", ["waiting", "running", "preempted"])
@pytest.mark.parametrize("cause", EndCause)
def test_whoever_is_ended_from_outside_owns_nothing(state: str, cause: EndCause) -> None:
    desk = Desk()
    request = desk.submitted("a") if state == "waiting" else desk.running("a")
    if state == "preempted":
        desk.book.preempt(request)
    request.generation.end_cause = cause
    desk.book.drop_ended()
    kinds = [type(event) for event in events_of(request)]
    clean = [SequenceFinished, Finished] if cause is EndCause.ABORTED else []
    began = state != "waiting" or cause is EndCause.ABORTED
    assert [kind for kind in kinds if kind is not Delta] == [Started] * began + clean
    heard = [] if state == "waiting" else ["begin", "end"]
    assert desk.drafter.heard_of("a") == heard
    desk.assert_nothing_left()


def test_ending_one_request_leaves_the_others() -> None:
    desk = Desk(max_rows=3)
    a, b = desk.running("req-1"), desk.running("req-10")
    pages = list(b.pages)
    a.generation.end_cause = EndCause.ABORTED
    desk.book.drop_ended()
    assert (desk.book.running, b.pages) == ([b], pages)
    desk.book.check_integrity()


def test_a_request_ends_once() -> None:
    desk = Desk()
    request = desk.running("a")
    desk.book.finish(request, ENDING)
    successor = desk.running("a")
    desk.book.fail(request.generation, StepFailed())
    request.generation.end_cause = EndCause.CANCELLED
    desk.book.drop_ended()
    assert desk.book.live() == [successor.generation]
    assert len(events_of(request)) == 3
    assert desk.drafting.sessions == 1


def test_the_check_finds_pages_that_no_live_request_owns() -> None:
    desk = Desk()
    desk.running("a").pages.pop()
    with pytest.raises(IntegrityError):
        desk.book.check_integrity()
