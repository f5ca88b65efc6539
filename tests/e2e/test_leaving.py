"""Requests that end before their time: aborted, cancelled, out of time, or killed with the client.

Nothing that such a request held may stay held, and nobody beside it may notice.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from specd_client import (
    CallCancelled,
    Client,
    DeadlineExceeded,
    Delta,
    Finished,
    FinishReason,
    InvalidRequest,
    SequenceFinished,
    Started,
)
from specd_client.client import Stream
from specd_client.events import Event
from specd_client.v1 import generation_pb2 as pb
from specd_client.v1 import generation_pb2_grpc

from benchmarks.toy_gguf import build_toy_model
from tests.e2e.calls import PROMPT, PROMPTS, answer, detokenized, quiet, wait_for
from tests.support.daemon import Daemon, daemon_process, environment, running_daemon

# A whole context of the toy: long enough to be interrupted, short enough to wait for.
LONG: dict[str, Any] = {"ignore_eos": True, "temperature": 0, "return_token_ids": True}
KILLED_CLIENT = """
import asyncio, sys
from specd_client import Client

async def main():
    async with Client(sys.argv[1]) as client:
        while True:
            async for event in client.stream("x", ignore_eos=True):
                print("event", flush=True)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def narrow_daemon(models: Path) -> Iterator[Daemon]:
    """One row, and a context that takes more than ten seconds to fill."""
    path = models / "long.gguf"
    build_toy_model(path, context_length=16_384)
    with daemon_process(path, "--max-rows", "1") as daemon:
        yield daemon


@asynccontextmanager
async def _running(client: Client, **options: Any) -> AsyncIterator[tuple[Stream, list[Event]]]:
    """A long stream whose first two events have come."""
    stream = client.stream(PROMPT, **LONG, **options)
    async with stream:
        yield stream, [await anext(stream), await anext(stream)]


@pytest.mark.asyncio
async def test_abort_ends_the_stream_cleanly_with_aborted(daemon: Daemon) -> None:
    async with Client(daemon.address) as client:
        plain = await answer(client, **LONG)
        async with _running(client, request_id="one") as (stream, events):
            assert await client.abort("one")
            async with asyncio.timeout(1):
                events += [event async for event in stream]
        *_, sequence, finished = events
        assert isinstance(sequence, SequenceFinished) and isinstance(finished, Finished)
        assert sequence.finish_reason is FinishReason.ABORTED
        deltas = [event for event in events if isinstance(event, Delta)]
        tokens = [token for delta in deltas for token in delta.token_ids]
        assert finished.usage.completion_tokens == len(tokens) < len(plain.token_ids)
        assert tuple(tokens) == plain.token_ids[: len(tokens)]
        assert "".join(delta.text for delta in deltas) == await detokenized(client, tokens)
        assert not await client.abort("one"), "aborting again finds nothing"
        await quiet(client)


@pytest.mark.asyncio
async def test_abort_of_an_unknown_id_finds_nothing_and_of_an_empty_one_is_refused(
    daemon: Daemon,
) -> None:
    async with (
        Client(daemon.address) as client,
        _running(client, request_id="alive") as (stream, _),
    ):
        assert await client.abort("nobody") is False
        with pytest.raises(InvalidRequest) as refused:
            await client.abort("")
        assert refused.value.field_violations[0].field == "request_id"
        assert isinstance([event async for event in stream][-1], Finished)


@pytest.mark.asyncio
async def test_abort_takes_the_whole_id_and_no_prefix(daemon: Daemon) -> None:
    async with Client(daemon.address) as client:
        async with (
            _running(client, request_id="req-1") as (first, _),
            _running(client, request_id="req-10") as (second, _),
        ):
            assert await client.abort("req-1")
            ends = [[event async for event in stream] for stream in (first, second)]
    assert [end[-2].finish_reason for end in ends] == [
        FinishReason.ABORTED,
        FinishReason.CONTEXT_LENGTH,
    ]


@pytest.mark.asyncio
async def test_abort_of_a_waiting_request_gives_it_a_whole_stream(narrow_daemon: Daemon) -> None:
    async with Client(narrow_daemon.address) as client, _running(client):
        waiting = client.stream(PROMPT, request_id="waiting", seed=5)
        await wait_for(client, running=1, waiting=1)
        assert await client.abort("waiting")
        started, sequence, finished = [event async for event in waiting]
        assert isinstance(started, Started) and (started.seed, started.request_id) == (5, "waiting")
        assert sequence.finish_reason is FinishReason.ABORTED
        assert finished.usage.completion_tokens == 0
        await wait_for(client, running=1, waiting=0)


@pytest.mark.asyncio
async def test_a_cancelled_stream_gives_back_what_it_held(narrow_daemon: Daemon) -> None:
    async with Client(narrow_daemon.address) as client:
        async with _running(client) as (stream, _):
            held = (await client.server_info()).counters
            assert (held.running, held.slots_used, held.drafter_sessions) == (1, 1, 1)
            assert held.pages_used > 0
            stream.cancel()
            with pytest.raises(CallCancelled):
                [event async for event in stream]
        async with asyncio.timeout(1):
            await quiet(client)


@pytest.mark.asyncio
async def test_a_deadline_ends_the_call_and_frees_the_row(narrow_daemon: Daemon) -> None:
    async with Client(narrow_daemon.address) as client:
        with pytest.raises(DeadlineExceeded):
            await client.generate(PROMPT, timeout_s=0.2, **LONG)
        async with asyncio.timeout(1):
            await quiet(client)


@pytest.mark.asyncio
async def test_a_killed_client_frees_its_row_within_a_second(narrow_daemon: Daemon) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", KILLED_CLIENT, narrow_daemon.address),
        stdout=subprocess.PIPE,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"event\n"
    finally:
        process.kill()
        await process.communicate()
    killed_s = time.monotonic()
    async with Client(narrow_daemon.address) as client:
        await answer(client, max_new_tokens=2, ignore_eos=True)
        assert time.monotonic() - killed_s < 1
        await quiet(client)


@pytest.mark.asyncio
async def test_a_closed_channel_is_a_cancelled_call(narrow_daemon: Daemon) -> None:
    async with Client(narrow_daemon.address) as watcher:
        async with Client(narrow_daemon.address) as client:
            stream = client.stream(PROMPT, **LONG)
            await anext(stream)
            await client.channel.close(None)
        async with asyncio.timeout(2):
            await quiet(watcher)


@pytest.mark.asyncio
async def test_a_cancelled_unary_call_is_cancelled_in_the_engine_too(
    narrow_daemon: Daemon,
) -> None:
    async with Client(narrow_daemon.address) as client:
        stub = generation_pb2_grpc.GenerationServiceStub(client.channel)
        call = stub.Generate(pb.GenerateRequest(input={"text": PROMPT}, stop={"ignore_eos": True}))
        await wait_for(client, running=1)
        call.cancel()
        async with asyncio.timeout(1):
            await quiet(client)
        assert await call.code() is grpc.StatusCode.CANCELLED


@pytest.mark.asyncio
async def test_a_storm_of_cancels_with_a_full_queue_leaves_a_living_daemon(toy: Path) -> None:
    choose = random.Random(1)
    async with running_daemon(toy, "--max-rows", "4", "--max-waiting", "64") as daemon:
        async with Client(daemon.address) as client:
            plain = await answer(client, max_new_tokens=40, speculation=False, **LONG)

            async def leave_early(index: int) -> None:
                stream = client.stream(PROMPTS[index % len(PROMPTS)], **LONG)
                num_events = choose.choice([0, 0, 1, 2, 10])
                async with stream:  # leaving it cancels
                    for _ in range(num_events):
                        await anext(stream)

            async def stay() -> None:
                run = await answer(client, max_new_tokens=40, **LONG)
                assert run.token_ids == plain.token_ids

            async with asyncio.timeout(60):
                for _ in range(3):
                    await asyncio.gather(*map(leave_early, range(36)), *(stay() for _ in range(4)))
            await quiet(client)


@pytest.mark.asyncio
async def test_many_short_requests_leave_no_page_and_no_task(daemon: Daemon) -> None:
    async with Client(daemon.address) as client:
        await answer(client, max_new_tokens=1)
        before = (await client.server_info()).counters
        for _ in range(10):
            await asyncio.gather(*(answer(client, max_new_tokens=2) for _ in range(30)))
        await quiet(client)
        after = (await client.server_info()).counters
        assert after.tasks == before.tasks
        assert after.pages_total == before.pages_total
