"""Promises of the dedicated thread: order, answers, abandonment, survival."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from specd.threads import DedicatedThread, ThreadClosed

PATIENCE_S = 10.0


@pytest.fixture
def thread() -> Iterator[DedicatedThread]:
    made = DedicatedThread("test")
    yield made
    assert made.close(PATIENCE_S)


def complaints() -> list[dict[str, Any]]:
    """What callbacks of the running loop raise from now on; asyncio itself would only log it."""
    heard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: heard.append(context))
    return heard


def raiser(error: BaseException) -> Callable[[], None]:
    def fn() -> None:
        raise error

    return fn


@pytest.mark.asyncio
async def test_call_runs_on_the_named_thread_and_returns_the_result(
    thread: DedicatedThread,
) -> None:
    assert await thread.call(lambda: threading.current_thread().name) == "test"


@pytest.mark.asyncio
async def test_an_exception_travels_back_as_itself(thread: DedicatedThread) -> None:
    error = ValueError("wrong")
    with pytest.raises(ValueError, match="wrong") as caught:
        await thread.call(raiser(error))
    assert caught.value is error


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration(1)],
    ids=lambda error: type(error).__name__,
)
async def test_what_a_loop_would_misread_arrives_as_a_runtime_error(
    thread: DedicatedThread, error: BaseException
) -> None:
    with pytest.raises(RuntimeError, match=type(error).__name__) as caught:
        await thread.call(raiser(error))
    assert caught.value.__cause__ is error


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), ValueError()])
async def test_nothing_raised_ends_the_thread(
    thread: DedicatedThread, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL, "specd.threads"):
        thread.post(raiser(error))
        assert await thread.call(lambda: "alive") == "alive"


@pytest.mark.asyncio
async def test_what_posted_work_raises_is_logged(
    thread: DedicatedThread, caplog: pytest.LogCaptureFixture
) -> None:
    thread.post(raiser(ValueError("posted")))
    await thread.call(lambda: None)
    assert "posted" in caplog.text


@pytest.mark.asyncio
async def test_posts_and_calls_run_in_the_order_handed_over(thread: DedicatedThread) -> None:
    seen: list[int] = []
    for i in range(50):
        thread.post(lambda i=i: seen.append(i))  # type: ignore[misc]
    assert await thread.call(lambda: list(seen)) == list(range(50))


@pytest.mark.asyncio
async def test_a_cancelled_caller_abandons_the_answer_and_the_next_call_gets_its_own(
    thread: DedicatedThread,
) -> None:
    heard = complaints()
    started, gate = threading.Event(), threading.Event()

    def slow() -> str:
        started.set()
        gate.wait(PATIENCE_S)
        return "late"

    caller = asyncio.create_task(thread.call(slow))
    await asyncio.to_thread(started.wait, PATIENCE_S)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert thread.busy
    gate.set()
    assert await thread.call(lambda: "mine") == "mine"
    assert heard == []


@pytest.mark.asyncio
async def test_a_late_exception_is_dropped_in_silence(thread: DedicatedThread) -> None:
    heard = complaints()
    gate = threading.Event()

    def slow() -> None:
        gate.wait(PATIENCE_S)
        raise ValueError("late")

    caller = asyncio.create_task(thread.call(slow))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    gate.set()
    assert await thread.call(lambda: "fine") == "fine"
    assert heard == []


@pytest.mark.asyncio
async def test_busy_says_whether_work_runs_or_waits(thread: DedicatedThread) -> None:
    gate = threading.Event()
    assert not thread.busy
    thread.post(lambda: gate.wait(PATIENCE_S))
    thread.post(lambda: None)
    assert thread.busy
    assert thread.backlog == 2
    gate.set()
    assert thread.close(PATIENCE_S)
    assert not thread.busy


def test_an_answer_for_a_closed_loop_is_swallowed(thread: DedicatedThread) -> None:
    gate = threading.Event()

    async def ask_and_leave() -> None:
        caller = asyncio.create_task(thread.call(lambda: gate.wait(PATIENCE_S)))
        await asyncio.sleep(0)
        caller.cancel()

    asyncio.run(ask_and_leave())
    gate.set()

    async def ask() -> str:
        return await thread.call(lambda: "still here")

    assert asyncio.run(ask()) == "still here"


@pytest.mark.asyncio
async def test_the_thread_holds_nothing_of_finished_work(thread: DedicatedThread) -> None:
    class Tensor:
        pass

    tensor, freed = Tensor(), threading.Event()
    watch = weakref.ref(tensor, lambda _: freed.set())
    await thread.call(lambda held=tensor: None)  # type: ignore[misc]
    del tensor
    assert await asyncio.to_thread(freed.wait, PATIENCE_S)
    assert watch() is None


def test_close_lets_waiting_work_finish() -> None:
    thread = DedicatedThread("closing")
    seen: list[int] = []
    for i in range(10):
        thread.post(lambda i=i: seen.append(i))  # type: ignore[misc]
    assert thread.close(PATIENCE_S)
    assert seen == list(range(10))


def test_close_gives_up_on_stuck_work_after_its_timeout() -> None:
    thread = DedicatedThread("stuck")
    gate = threading.Event()
    thread.post(lambda: gate.wait(PATIENCE_S))
    assert not thread.close(0.01)
    gate.set()
    assert thread.close(PATIENCE_S)


@pytest.mark.asyncio
async def test_work_after_close_is_refused() -> None:
    thread = DedicatedThread("closed")
    thread.close(PATIENCE_S)
    with pytest.raises(ThreadClosed, match="closed"):
        await thread.call(lambda: None)
    with pytest.raises(ThreadClosed):
        thread.post(lambda: None)
