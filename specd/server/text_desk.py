"""Turns prompts into ids and ids into text, off the event loop, a bounded amount at a time.

Knows that long texts take seconds and short ones microseconds: each kind has a thread of its own.
Invariant: what waits is bounded in bytes; work whose caller has gone is not begun.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from specd.errors import TooMuchText
from specd.threads import DedicatedThread

T = TypeVar("T")

# A text of 16 KiB takes about 10 ms.
LONG_BYTES = 16 * 1024
# Four requests of the largest size.
MAX_PENDING_BYTES = 16 * 1024 * 1024


class TextDesk:
    """Two threads: nobody with a short text waits for somebody with a long one."""

    def __init__(self) -> None:
        self._short, self._long = _Lane("specd-text"), _Lane("specd-long-text")

    async def do(self, work: Callable[[], T], num_bytes: int) -> T:
        """Run `work`, which has so many bytes to look at. Raises TooMuchText, or what it raises."""
        lane = self._long if num_bytes > LONG_BYTES else self._short
        return await lane.do(work, num_bytes)

    def close(self) -> None:
        """Take no more work; what runs is left behind."""
        for lane in (self._short, self._long):
            lane.thread.close(0)


class _Gone(Exception):
    """Whoever wanted the work does not wait for it any more."""


class _Lane:
    def __init__(self, name: str) -> None:
        self.thread = DedicatedThread(name)
        self._pending_bytes = 0

    async def do(self, work: Callable[[], T], num_bytes: int) -> T:
        if self._pending_bytes and self._pending_bytes + num_bytes > MAX_PENDING_BYTES:
            raise TooMuchText(MAX_PENDING_BYTES)
        is_wanted = True

        def begin() -> T:
            if not is_wanted:
                raise _Gone
            return work()

        self._pending_bytes += num_bytes
        try:
            return await self.thread.call(begin)
        finally:
            is_wanted = False
            self._pending_bytes -= num_bytes
