"""Deadlines and connections: what cannot be in time is refused at once, who is gone is noticed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from specd_client import CallFailed, Client, DeadlineExceeded, Finished
from specd_client.errors import error_from

from tests.e2e.calls import PATIENCE_S, answer, quiet, stream_request, stubs, wait_for
from tests.support.daemon import Daemon, running_daemon

# Reads one event, says so, and then only keeps its connection.
READER = """
import asyncio, sys
from specd_client import Client

async def main():
    async with Client(sys.argv[1]) as client:
        stream = client.stream("x", ignore_eos=True)
        print(await anext(stream), flush=True)
        async for _ in stream:
            pass

asyncio.run(main())
"""


@contextmanager
def _stopped_reader(address: str) -> Iterator[None]:
    """A client like a machine that vanished: its connection neither answers nor ends."""
    with subprocess.Popen([sys.executable, "-c", READER, address], stdout=-1) as reader:
        try:
            assert reader.stdout is not None
            assert reader.stdout.readline().startswith(b"Started")
            reader.send_signal(signal.SIGSTOP)
            yield
        finally:
            reader.kill()


async def _too_late(address: str, ids: list[int], limit_s: float) -> CallFailed | None:
    """The error of a call with this time limit; None where the answer came in time."""
    request = stream_request(input={"tokens": {"ids": ids}}, stop={"max_new_tokens": 1})
    async with stubs(address) as raw:
        await raw.channel.channel_ready()
        try:
            async for _ in raw.generation.StreamGenerate(request, timeout=limit_s):
                pass
        except grpc.aio.AioRpcError as error:
            return error_from(error)
    return None


@pytest.mark.asyncio
async def test_a_prompt_that_cannot_be_done_in_time_is_refused_at_once(slow_toy: Path) -> None:
    ids = [7] * 4000
    async with running_daemon(slow_toy) as daemon, Client(daemon.address) as client:
        begin_s = time.monotonic()
        run = await answer(client, ids, max_new_tokens=1)
        assert run.usage.completion_tokens == 1
        limit_s = time.monotonic() - begin_s
        reason = ""
        while reason != "DEADLINE_TOO_SHORT":
            limit_s /= 2
            assert limit_s > 0.001, "no deadline is too short for it"
            before = (await client.server_info()).counters.steps
            error = await _too_late(daemon.address, ids, limit_s)
            reason = error.reason if error is not None else ""
            steps = (await client.server_info()).counters.steps - before
            await quiet(client)
        assert isinstance(error, DeadlineExceeded)
        left_s, needed_s = (float(error.metadata[name]) for name in ("time_left_s", "needed_s"))
        assert 0 < left_s <= limit_s + 0.001 and left_s < needed_s  # told in milliseconds
        assert steps == 0, "nothing of it has run"
        assert (await answer(client, max_new_tokens=1)).usage.completion_tokens == 1


@pytest.mark.asyncio
async def test_a_deadline_ends_a_request_that_still_waits(long_toy: Path) -> None:
    async with running_daemon(long_toy, "--max-rows", "1") as daemon, Client(daemon.address) as c:
        stream = c.stream("x", ignore_eos=True)
        await anext(stream)
        with pytest.raises(DeadlineExceeded):
            await c.generate("y", timeout_s=0.2)
        await wait_for(c, running=1, waiting=0)
        stream.cancel()
        await quiet(c)


@pytest.mark.asyncio
async def test_a_client_that_pings_without_a_call_keeps_its_connection(daemon: Daemon) -> None:
    pinging = [
        ("grpc.keepalive_time_ms", 1_100),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    async with Client(daemon.address, channel_options=pinging) as client:
        await client.channel.channel_ready()
        # Three pings too many would end the connection, were they too many.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await client.channel.wait_for_state_change(grpc.ChannelConnectivity.READY)


@pytest.mark.asyncio
async def test_an_old_connection_is_left_for_a_new_one_and_its_streams_may_end(
    long_toy: Path,
) -> None:
    flags = ("--max-connection-age-seconds", "0.5")
    async with running_daemon(long_toy, *flags) as daemon, Client(daemon.address) as client:
        channel = client.channel
        await channel.channel_ready()
        stream = client.stream("x", ignore_eos=True, max_new_tokens=4000)
        async with asyncio.timeout(PATIENCE_S):
            await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        assert isinstance([event async for event in stream][-1], Finished)
        assert (await answer(client, max_new_tokens=1)).usage.completion_tokens == 1


@pytest.mark.asyncio
async def test_a_peer_that_says_nothing_any_more_is_given_up(long_toy: Path) -> None:
    flags = ("--keepalive-seconds", "1", "--max-rows", "1")
    async with running_daemon(long_toy, *flags) as daemon, Client(daemon.address) as client:
        with _stopped_reader(daemon.address):
            await wait_for(client, running=1)
            # By itself the stream would end where the context does.
            await wait_for(client, running=0, pages_used=0)
            assert (await client.server_info()).counters.steps < 60_000
