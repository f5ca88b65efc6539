"""Turns prompts into ids and ids into text, off the event loop, a bounded amount at a time.

Knows that long texts take seconds and short ones microseconds: each kind has a thread of its own.
Invariant: what waits and what runs is bounded in bytes, whoever has gone meanwhile; work that
nobody waits for is not begun, and its text is let go at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
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
        loop = asyncio.get_running_loop()
        waiting = [work]  # taken out once: by the thread, or by whoever has had enough

        def begin() -> T:
            try:
                wanted = waiting.pop()
            except IndexError:
                raise _Gone from None
            try:
                return wanted()
            finally:
                with suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._release, num_bytes)

        self._pending_bytes += num_bytes
        try:
            return await self.thread.call(begin)
        finally:
            if waiting:
                with suppress(IndexError):
                    waiting.pop()
                    self._release(num_bytes)

    def _release(self, num_bytes: int) -> None:
        self._pending_bytes -= num_bytes
