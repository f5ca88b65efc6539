"""What the protocol promises of a stream of events, and the answer that a whole one makes.

Knows the order of events; knows nothing of calls. Invariant: events that break the order raise.
"""

from __future__ import annotations

from collections.abc import Sequence

from specd_client.errors import ProtocolError
from specd_client.events import (
    Completion,
    Delta,
    Event,
    Finished,
    SequenceFinished,
    Started,
    event_from,
)
from specd_client.v1 import generation_pb2 as pb


class Order:
    """The order of events that the protocol promises: one object per stream."""

    def __init__(self) -> None:
        self._started = False
        self._open: set[int] = set()
        self._closed: set[int] = set()
        self._finished = False

    def read(self, response: pb.StreamGenerateResponse) -> Event:
        """Returns the next event. Raises ProtocolError for one that may not come now."""
        event = event_from(response)
        self._check(event)
        return event

    def check_end(self) -> None:
        """Raises ProtocolError where the stream may not end now."""
        if not self._finished:
            raise ProtocolError("the stream ended without finished")

    def _check(self, event: Event) -> None:
        if self._finished:
            raise ProtocolError(f"{type(event).__name__} after finished")
        if isinstance(event, Started) is self._started:
            raise ProtocolError("a stream begins with one started and no other event")
        self._started = True
        match event:
            case Delta():
                self._check_open(event.sequence_index)
            case SequenceFinished():
                self._check_open(event.sequence_index)
                self._open.remove(event.sequence_index)
                self._closed.add(event.sequence_index)
            case Finished():
                self._check_all_closed()
                self._finished = True

    def _check_open(self, index: int) -> None:
        if index in self._closed:
            raise ProtocolError(f"an event of sequence {index} after its end")
        self._open.add(index)

    def _check_all_closed(self) -> None:
        if self._open or not self._closed:
            raise ProtocolError("finished before the end of every sequence")


def completion_from(events: Sequence[Event]) -> Completion:
    """Returns the whole answer that a checked stream of one sequence told."""
    started, *_, finished = events
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    sequence, *others = (event for event in events if isinstance(event, SequenceFinished))
    if others:
        raise ProtocolError("several sequences, where one was asked for")
    deltas = [event for event in events if isinstance(event, Delta)]
    return Completion(
        started=started,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=tuple(logprob for delta in deltas for logprob in delta.logprobs),
        steps=tuple(step for delta in deltas for step in delta.steps),
        finish_reason=sequence.finish_reason,
        matched_token_id=sequence.matched_token_id,
        matched_stop_string=sequence.matched_stop_string,
        usage=finished.usage,
        speculation=finished.speculation,
    )
