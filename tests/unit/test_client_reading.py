"""Reading a stream of the async client: by two tasks, and by tasks that were cancelled before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from specd_client import CallCancelled, Started

from tests.support.scripted_server import STARTED, play_and_hang, serving

WAIT_S = 10.0


def current_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task


@asynccontextmanager
async def outlived_cancellation() -> AsyncIterator[None]:
    """A task that has caught a cancellation and says to nobody that it goes on."""
    task = current_task()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    yield
    task.uncancel()


@pytest.mark.asyncio
async def test_a_task_that_outlived_a_cancellation_is_told_of_a_cancelled_stream() -> None:
    async with serving(play_and_hang(STARTED)) as (client, _), outlived_cancellation():
        stream = client.stream("Hi")
        await anext(stream)
        asyncio.get_running_loop().call_soon(stream.cancel)
        with pytest.raises(CallCancelled):
            await anext(stream)
        with pytest.raises(CallCancelled):
            await anext(stream)


@pytest.mark.asyncio
async def test_a_task_that_outlived_a_cancellation_can_be_cancelled_again() -> None:
    async with serving(play_and_hang(STARTED)) as (client, scripted), outlived_cancellation():
        stream = client.stream("Hi")
        await anext(stream)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(stream)
        await asyncio.wait_for(scripted.cancelled.wait(), WAIT_S)


@pytest.mark.asyncio
async def test_a_cancellation_that_comes_before_the_read_ends_it_and_its_call() -> None:
    async with serving(play_and_hang(STARTED)) as (client, scripted):
        stream = client.stream("Hi")
        await anext(stream)
        task = current_task()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await anext(stream)
        task.uncancel()
        await asyncio.wait_for(scripted.cancelled.wait(), WAIT_S)


@pytest.mark.asyncio
async def test_a_second_reader_is_refused_and_the_first_goes_on() -> None:
    async with serving(play_and_hang(STARTED)) as (client, _):
        stream = client.stream("Hi")
        readers = [asyncio.create_task(anext(stream)) for _ in range(2)]
        done, _ = await asyncio.wait(readers, timeout=WAIT_S)
        assert done == set(readers)
        first, second = readers
        assert isinstance(first.result(), Started)
        with pytest.raises(RuntimeError, match="one reader"):
            second.result()
