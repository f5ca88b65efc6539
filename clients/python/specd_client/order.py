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
    GeneratedSequence,
    SequenceFinished,
    Started,
    event_from,
)
from specd_client.v1 import generation_pb2 as pb


class Order:
    """The order of events that the protocol promises: one object per stream.

    num_sequences: as many as were asked for.
    """

    def __init__(self, num_sequences: int = 1) -> None:
        self._num_sequences = num_sequences
        self._started = False
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
                self._closed.add(event.sequence_index)
            case Finished():
                self._check_all_closed()
                self._finished = True

    def _check_open(self, index: int) -> None:
        if index >= self._num_sequences:
            raise ProtocolError(f"sequence {index}, where {self._num_sequences} were asked for")
        if index in self._closed:
            raise ProtocolError(f"an event of sequence {index} after its end")

    def _check_all_closed(self) -> None:
        if len(self._closed) < self._num_sequences:
            raise ProtocolError("finished before the end of every sequence")


def completion_from(events: Sequence[Event]) -> Completion:
    """Returns the whole answer that a checked stream told."""
    started, *_, finished = events
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    deltas: dict[int, list[Delta]] = {}
    ends: dict[int, SequenceFinished] = {}
    for event in events:
        if isinstance(event, Delta):
            deltas.setdefault(event.sequence_index, []).append(event)
        elif isinstance(event, SequenceFinished):
            ends[event.sequence_index] = event
    sequences = (_sequence(deltas.get(index, []), ends[index]) for index in sorted(ends))
    return Completion(started, tuple(sequences), finished.usage, finished.speculation)


def _sequence(deltas: Sequence[Delta], end: SequenceFinished) -> GeneratedSequence:
    return GeneratedSequence(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=tuple(logprob for delta in deltas for logprob in delta.logprobs),
        steps=tuple(step for delta in deltas for step in delta.steps),
        completion_tokens=deltas[-1].completion_tokens if deltas else 0,
        finish_reason=end.finish_reason,
        matched_token_id=end.matched_token_id,
        matched_stop_string=end.matched_stop_string,
    )
