"""Text is worked on off the loop, a bounded amount at a time, and never for nobody."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from specd.errors import TooMuchText
from specd.server.text_desk import LONG_BYTES, MAX_PENDING_BYTES, TextDesk

LONG = LONG_BYTES + 1


@pytest_asyncio.fixture
async def desk() -> AsyncIterator[TextDesk]:
    desk = TextDesk()
    yield desk
    desk.close()


class Held:
    """Work that goes on until it is let go."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.let_go.wait(10)
        return "done"


async def _begun(desk: TextDesk, held: Held, num_bytes: int) -> asyncio.Task[str]:
    task = asyncio.create_task(desk.do(held, num_bytes))
    await asyncio.to_thread(held.begun.wait, 10)
    return task


@pytest.mark.asyncio
async def test_a_short_text_does_not_wait_for_a_long_one(desk: TextDesk) -> None:
    held = Held()
    long = await _begun(desk, held, LONG)
    assert await asyncio.wait_for(desk.do(lambda: "short", 10), 10) == "short"
    held.let_go.set()
    assert await long == "done"


@pytest.mark.asyncio
async def test_what_waits_is_bounded_in_bytes_and_one_may_always_come(desk: TextDesk) -> None:
    held = Held()
    first = await _begun(desk, held, MAX_PENDING_BYTES * 2)
    with pytest.raises(TooMuchText):
        await desk.do(lambda: "more", LONG)
    held.let_go.set()
    assert await first == "done"
    assert await desk.do(lambda: "later", LONG) == "later"


@pytest.mark.asyncio
async def test_work_that_nobody_waits_for_is_not_begun(desk: TextDesk) -> None:
    held, done = Held(), []
    first = await _begun(desk, held, LONG)
    second = asyncio.create_task(desk.do(lambda: done.append("second"), LONG))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    held.let_go.set()
    await first
    await desk.do(lambda: done.append("third"), LONG)
    assert done == ["third"]


@pytest.mark.asyncio
async def test_an_error_of_the_work_is_the_caller_s(desk: TextDesk) -> None:
    def fail() -> None:
        raise ValueError("no such text")

    with pytest.raises(ValueError, match="no such text"):
        await desk.do(fail, 1)
    assert await desk.do(lambda: 1, MAX_PENDING_BYTES) == 1


@pytest.mark.asyncio
async def test_work_that_still_runs_counts_though_its_caller_has_gone(desk: TextDesk) -> None:
    held = Held()
    left = await _begun(desk, held, MAX_PENDING_BYTES)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    with pytest.raises(TooMuchText):
        await desk.do(lambda: "more", LONG)
    held.let_go.set()
    while True:
        try:
            assert await desk.do(lambda: "later", LONG) == "later"
            return
        except TooMuchText:
            await asyncio.to_thread(held.let_go.wait)


@pytest.mark.asyncio
async def test_the_text_of_whoever_left_before_its_turn_is_let_go_at_once(desk: TextDesk) -> None:
    class Text:
        pass

    held, text = Held(), Text()
    gone = weakref.ref(text)
    first = await _begun(desk, held, LONG)

    def work(text: Text = text) -> None:
        raise AssertionError(f"{text} was worked on")

    second = asyncio.create_task(desk.do(work, MAX_PENDING_BYTES - LONG))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait({second})
    del work, text, second
    gc.collect()
    assert gone() is None
    room = asyncio.create_task(desk.do(lambda: "room", MAX_PENDING_BYTES - LONG))
    held.let_go.set()
    assert (await first, await room) == ("done", "room")
