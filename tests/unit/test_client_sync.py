"""Streams of the sync client, read in a thread: however one is left, its call is over."""

from __future__ import annotations

import asyncio
import gc
import queue
import threading
from collections.abc import AsyncIterator
from contextlib import closing

import pytest
from specd_client import CallCancelled, DeadlineExceeded, Delta, Event, ProtocolError, sync
from specd_client.v1 import generation_pb2 as pb

from tests.support.scripted_server import (
    HEL,
    STARTED,
    STOPPED,
    WHOLE,
    Scripted,
    play,
    play_and_hang,
    serving_sync,
)


async def told_of_it(scripted: Scripted) -> None:
    """Waits until the server knows that the call was cancelled."""
    await asyncio.wait_for(scripted.cancelled.wait(), 10)


def read_first_delta(client: sync.Client) -> None:
    for event in client.stream("Hi"):
        if isinstance(event, Delta):
            break


@pytest.mark.asyncio
async def test_leaving_the_loop_cancels_the_call() -> None:
    async with serving_sync(play_and_hang(STARTED, HEL)) as (client, scripted):
        await asyncio.to_thread(read_first_delta, client)
        gc.collect()
        await told_of_it(scripted)


@pytest.mark.asyncio
async def test_an_exception_in_the_loop_cancels_the_call() -> None:
    def read(client: sync.Client) -> None:
        for _ in client.stream("Hi"):
            raise ZeroDivisionError

    async with serving_sync(play_and_hang(STARTED)) as (client, scripted):
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(read, client)
        gc.collect()
        await told_of_it(scripted)


@pytest.mark.asyncio
async def test_leaving_the_block_cancels_the_call() -> None:
    kept: list[sync.Stream[Event]] = []

    def read(client: sync.Client) -> None:
        with client.stream("Hi") as stream:
            kept.append(stream)
            next(stream)
            raise ZeroDivisionError

    async with serving_sync(play_and_hang(STARTED)) as (client, scripted):
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(read, client)
        await told_of_it(scripted)


@pytest.mark.asyncio
async def test_closing_a_stream_cancels_the_call() -> None:
    kept: list[sync.Stream[Event]] = []

    def read(client: sync.Client) -> None:
        with closing(client.stream("Hi")) as stream:
            kept.append(stream)
            next(stream)

    async with serving_sync(play_and_hang(STARTED)) as (client, scripted):
        await asyncio.to_thread(read, client)
        await told_of_it(scripted)


@pytest.mark.asyncio
async def test_another_thread_can_cancel_a_stream_that_is_being_read() -> None:
    reading = threading.Event()

    def read(stream: sync.Stream[Event]) -> None:
        for _ in stream:
            reading.set()

    async with serving_sync(play_and_hang(STARTED)) as (client, scripted):
        stream = client.stream("Hi")
        reader = asyncio.create_task(asyncio.to_thread(read, stream))
        assert await asyncio.to_thread(reading.wait, 10)
        stream.cancel()
        with pytest.raises(CallCancelled):
            await reader
        await told_of_it(scripted)


@pytest.mark.asyncio
async def test_a_second_reader_is_refused_and_the_first_goes_on() -> None:
    goes_on = asyncio.Event()

    async def script(_: object, __: object) -> AsyncIterator[pb.StreamGenerateResponse]:
        yield STARTED
        await goes_on.wait()
        for response in WHOLE[1:]:
            yield response

    async with serving_sync(script) as (client, _):
        stream = client.stream("Hi")
        await asyncio.to_thread(next, stream)
        outcomes: queue.SimpleQueue[object] = queue.SimpleQueue()

        def read() -> None:
            try:
                outcomes.put(next(stream))
            except RuntimeError as error:
                outcomes.put(error)

        readers = [asyncio.create_task(asyncio.to_thread(read)) for _ in range(2)]
        refused = await asyncio.to_thread(outcomes.get, timeout=10)
        assert isinstance(refused, RuntimeError) and "one reader" in str(refused)
        goes_on.set()
        await asyncio.gather(*readers)
        assert isinstance(outcomes.get(), Delta)
        assert len(await asyncio.to_thread(list, stream)) == len(WHOLE) - 2


@pytest.mark.asyncio
async def test_closing_the_client_ends_the_streams_of_other_threads() -> None:
    reading = threading.Event()

    def read(stream: sync.Stream[Event]) -> None:
        for _ in stream:
            reading.set()

    async with serving_sync(play_and_hang(STARTED)) as (client, scripted):
        reader = asyncio.create_task(asyncio.to_thread(read, client.stream("Hi")))
        assert await asyncio.to_thread(reading.wait, 10)
        await asyncio.to_thread(client.channel.close)
        with pytest.raises(CallCancelled):
            await reader
        await told_of_it(scripted)


@pytest.mark.asyncio
async def test_a_broken_order_of_events_is_an_error_and_cancels_the_call() -> None:
    async with serving_sync(play_and_hang(HEL)) as (client, scripted):
        stream = client.stream("Hi")
        with pytest.raises(ProtocolError):
            await asyncio.to_thread(next, stream)
        await told_of_it(scripted)


@pytest.mark.asyncio
async def test_a_stream_without_finished_is_an_error() -> None:
    async with serving_sync(play(STARTED, STOPPED)) as (client, _):
        with pytest.raises(ProtocolError, match="without finished"):
            await asyncio.to_thread(list, client.stream("Hi"))


@pytest.mark.asyncio
async def test_a_stream_that_is_over_stays_over() -> None:
    async with serving_sync(play(*WHOLE)) as (client, scripted):
        stream = client.stream("Hi")
        assert len(await asyncio.to_thread(list, stream)) == len(WHOLE)
        assert list(stream) == []
        stream.cancel()
        assert list(stream) == []
    assert not scripted.cancelled.is_set()


@pytest.mark.asyncio
async def test_the_timeout_ends_the_whole_call() -> None:
    async with serving_sync(play_and_hang(STARTED)) as (client, _):
        with pytest.raises(DeadlineExceeded):
            await asyncio.to_thread(lambda: client.generate("Hi", timeout_s=0.05))


@pytest.mark.asyncio
async def test_threads_may_share_a_client() -> None:
    async with serving_sync(play(*WHOLE)) as (client, _):
        calls = [asyncio.to_thread(client.generate, "Hi") for _ in range(8)]
        assert {answer.text for answer in await asyncio.gather(*calls)} == {"Hello"}
