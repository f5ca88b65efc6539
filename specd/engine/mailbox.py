"""The place where a request's events wait for its reader.

One writer (the loop, which never waits), one reader (the stream's handler). Deltas that nobody has
read are joined into few when the reader comes, so a slow reader costs memory for its own
generation and nothing else. Invariant: events keep their order, and nothing follows the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, Self

from specd.engine.events import Delta, Event
from specd.errors import SpecdError

# Tokens, characters and steps of one merged delta: some hundred kilobytes on the wire. A context of
# 100,000 unread tokens in one message would be more than readers and gRPC itself take.
MAX_MERGED = 16_384


class EndOfEvents(Exception):
    """The last event was read and no more will come."""


class MailboxStatistics(NamedTuple):
    """waiting: events put and not read. merged: deltas that were joined to an earlier one."""

    waiting: int
    merged: int


def merge(deltas: list[Delta]) -> Delta:
    """Join consecutive deltas; the cumulative count is the last one's."""
    if len(deltas) == 1:
        return deltas[0]
    return Delta(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        num_completion_tokens=deltas[-1].num_completion_tokens,
        steps=tuple(step for delta in deltas for step in delta.steps),
    )


class Mailbox:
    """Unbounded by itself: a generation's own length bounds it."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._error: SpecdError | None = None
        self._closed = False
        self._changed = asyncio.Event()
        self._merged = 0

    def put_nowait(self, event: Event) -> None:
        """Add an event; dropped if the mailbox is closed."""
        if not self._closed:
            self._events.append(event)
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
        if self._events:
            return self._take()
        if not self._closed:
            return None
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
        return MailboxStatistics(len(self._events), self._merged)

    def _take(self) -> Event:
        first = self._events[0]
        if not isinstance(first, Delta):
            return self._events.popleft()
        run: list[Delta] = []
        size = 0
        while self._events and isinstance(event := self._events[0], Delta):
            size += len(event.token_ids) + len(event.text) + len(event.steps)
            if run and size > MAX_MERGED:
                break
            run.append(event)
            self._events.popleft()
        self._merged += len(run) - 1
        return merge(run)
