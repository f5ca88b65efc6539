"""One thread that runs what it is handed, in order, and hands each answer back to the event loop.

Knows nothing of drafters or devices; both use it. Work that was handed over cannot be taken back:
whoever stops waiting abandons the answer, not the work.
Invariant: every item runs exactly once, in the order handed over, and nothing that an item raises
ends the thread.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")

_Work = Callable[[], None]
_log = logging.getLogger("specd.threads")
_all: weakref.WeakSet[DedicatedThread] = weakref.WeakSet()  # a thread keeps itself in here


def left_behind(patience_s: float) -> list[str]:
    """Names of the closed threads that have not ended, after waiting `patience_s` for each."""
    closed = [thread for thread in _all if thread.is_closed]
    return sorted(thread.name for thread in closed if not thread.close(patience_s))


class ThreadClosed(RuntimeError):
    """Work for a `DedicatedThread` that has been closed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"thread {name!r} is closed")


class DedicatedThread:
    """A daemon thread of its own with a queue.

    A hand-over and back costs about 38 us here, `anyio.to_thread` about 90.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._num_submitted = 0  # written under the lock
        self._num_finished = 0  # written by the thread alone
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()
        _all.add(self)

    @property
    def is_closed(self) -> bool:
        """True once `close` was called: it takes no work any more, and may still do some."""
        return self._closed

    @property
    def backlog(self) -> int:
        """Items handed over and not finished, the running one included."""
        return self._num_submitted - self._num_finished

    @property
    def busy(self) -> bool:
        """True while an item runs or waits."""
        return self.backlog > 0

    async def call(self, fn: Callable[[], T]) -> T:
        """Run `fn` on the thread and return what it returns.

        Cancelling the caller abandons the answer: the thread goes on, and what comes late is
        dropped.

        Raises: whatever `fn` raises; a RuntimeError in the place of what is no ordinary exception
        (SystemExit, KeyboardInterrupt, CancelledError) or cannot pass a future (StopIteration),
        since on the loop those would mean something else; ThreadClosed after `close`.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._submit(partial(_run, fn, loop, answer))
        return await answer

    def post(self, fn: Callable[[], object]) -> None:
        """Run `fn` on the thread, in order with all other work; what it raises is logged.

        Raises: ThreadClosed after `close`.
        """
        self._submit(partial(_run_unheard, fn, self.name))

    def close(self, timeout: float) -> bool:
        """Let the work that waits finish, then end the thread; True once it has ended.

        Waits for at most `timeout` seconds, and not at all with 0. Closing twice is harmless.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _submit(self, work: _Work) -> None:
        with self._lock:
            if self._closed:
                raise ThreadClosed(self.name)
            self._num_submitted += 1
            self._queue.put(work)

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
            # What an item holds (tensors, prompts) must not live until the next one comes.
            del work
            self._num_finished += 1


def _run(fn: Callable[[], T], loop: asyncio.AbstractEventLoop, answer: asyncio.Future[T]) -> None:
    deliver: _Work
    try:
        deliver = partial(_set_result, answer, fn())
    except BaseException as error:
        deliver = partial(_set_exception, answer, _bearable(error))
    try:
        loop.call_soon_threadsafe(deliver)
    except RuntimeError:
        _log.debug("an answer came after its event loop had closed")
    # An error's traceback holds this frame: without this, frame and error keep each other alive.
    del deliver, answer


def _run_unheard(fn: Callable[[], object], name: str) -> None:
    try:
        fn()
    except BaseException:
        _log.exception("work posted to thread %r raised", name)


def _set_result(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _set_exception(answer: asyncio.Future[T], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _bearable(error: BaseException) -> Exception:
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    stand_in = RuntimeError(f"the call raised {type(error).__name__}: {error}")
    stand_in.__cause__ = error
    return stand_in
