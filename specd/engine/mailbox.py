"""The place where a generation's events wait for its reader.

One writer (the loop, which never waits), one reader (the stream's handler). Deltas that nobody has
read are joined into few when the reader comes, so a slow reader costs memory for its own
generation and nothing else. Sequences wait in lanes of their own and are read in turn, so that
they join however they alternate. Invariant: events of a sequence keep their order, `Started` comes
before all, `Finished` behind all, and nothing follows the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, Self

from specd.engine.events import Delta, Event, Finished, SequenceFinished, Started
from specd.errors import SpecdError

# Tokens, characters, steps and log probabilities of one merged delta: some hundred kilobytes on
# the wire. A context of 100,000 unread tokens in one message would be more than readers and gRPC
# itself take.
MAX_MERGED = 16_384


class EndOfEvents(Exception):
    """The last event was read and no more will come."""


class MailboxStatistics(NamedTuple):
    """waiting: events put and not read. merged: deltas that were joined to an earlier one."""

    waiting: int
    merged: int


def merge(deltas: list[Delta]) -> Delta:
    """Join consecutive deltas of one sequence; the cumulative count is the last one's."""
    if len(deltas) == 1:
        return deltas[0]
    return Delta(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        num_completion_tokens=deltas[-1].num_completion_tokens,
        steps=tuple(step for delta in deltas for step in delta.steps),
        sequence_index=deltas[-1].sequence_index,
        logprobs=tuple(one for delta in deltas for one in delta.logprobs),
    )


class Mailbox:
    """Unbounded by itself: a generation's own length bounds it."""

    def __init__(self) -> None:
        self._started: Started | None = None
        self._lanes: dict[int, deque[Delta | SequenceFinished]] = {}  # next to be read first
        self._finished: Finished | None = None
        self._error: SpecdError | None = None
        self._closed = False
        self._changed = asyncio.Event()
        self._merged = 0

    @property
    def closed(self) -> bool:
        """Whether the stream has its end, read or not."""
        return self._closed

    def put_nowait(self, event: Event) -> None:
        """Add an event; dropped if the mailbox is closed."""
        if self._closed:
            return
        if isinstance(event, Started):
            self._started = event
        elif isinstance(event, Finished):
            self._finished = event
        else:
            lane = self._lanes.get(event.sequence_index)
            if lane is None:
                lane = self._lanes[event.sequence_index] = deque()
            lane.append(event)
        self._changed.set()

    def close(self, error: SpecdError | None = None) -> None:
        """End the stream behind what is queued, with `error` or cleanly. Later calls do nothing."""
        if not self._closed:
            self._closed, self._error = True, error
            self._changed.set()

    def get_nowait(self) -> Event | None:
        """Take the next event, merged as far as it goes; None if nothing waits yet.

        Raises:
            EndOfEvents: the stream ended cleanly.
            SpecdError: the stream ended with this error.
        """
        event: Event | None
        if self._started is not None:
            event, self._started = self._started, None
        elif self._lanes:
            event = self._take()
        else:
            event, self._finished = self._finished, None
        if event is not None or not self._closed:
            return event
        if self._error is not None:
            raise self._error
        raise EndOfEvents

    async def get(self) -> Event:
        """Wait for the next event. Raises like `get_nowait`."""
        while (event := self.get_nowait()) is None:
            self._changed.clear()
            await self._changed.wait()
        return event

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        try:
            return await self.get()
        except EndOfEvents:
            raise StopAsyncIteration from None

    def statistics(self) -> MailboxStatistics:
        waiting = sum(map(len, self._lanes.values()))
        waiting += (self._started is not None) + (self._finished is not None)
        return MailboxStatistics(waiting, self._merged)

    def _take(self) -> Event:
        """From the lane that has waited longest, which goes behind the others."""
        index = next(iter(self._lanes))
        lane = self._lanes.pop(index)
        event = self._joined(lane) if isinstance(lane[0], Delta) else lane.popleft()
        if lane:
            self._lanes[index] = lane
        return event

    def _joined(self, lane: deque[Delta | SequenceFinished]) -> Delta:
        run: list[Delta] = []
        size = 0
        while lane and isinstance(event := lane[0], Delta):
            size += _size(event)
            if run and size > MAX_MERGED:
                break
            run.append(event)
            lane.popleft()
        self._merged += len(run) - 1
        return merge(run)


def _size(delta: Delta) -> int:
    """In units of some ten bytes on the wire."""
    size = len(delta.token_ids) + len(delta.text) + len(delta.steps)
    return size + sum(1 + len(one.alternatives) for one in delta.logprobs)
