"""A step that fails ends its own streams; a device that is lost ends the daemon, and says so."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from specd_client import CallFailed, Client, InternalError, NotReady

from tests.e2e.calls import PROMPT, PROMPTS, answer, quiet, wait_for
from tests.support.daemon import Daemon, spawned

ENDLESS: dict[str, Any] = {"ignore_eos": True}
KERNELS = ("auto", "torch")
STATUS = health_pb2.HealthCheckResponse


@asynccontextmanager
async def _faulty(model: Path, *flags: str) -> AsyncIterator[tuple[Daemon, Client]]:
    with spawned(model, *flags, module="tests.support.faulty_torch") as daemon:
        daemon.wait_ready()
        async with Client(daemon.address, retries=False) as client:
            yield daemon, client


async def _end(stream: Any) -> Exception | None:
    """The error that a stream ends with."""
    try:
        async for _ in stream:
            pass
    except CallFailed as error:
        return error
    return None


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.asyncio
async def test_a_step_that_fails_ends_its_own_streams_and_the_next_request_is_served(
    long_toy: Path, kernels: str
) -> None:
    async with _faulty(long_toy, "--max-rows", "3", "--kernels", kernels) as (daemon, client):
        before = await answer(client, seed=4, max_new_tokens=12)
        streams = [client.stream(prompt, **ENDLESS) for prompt in PROMPTS[:3]]
        waiting = asyncio.create_task(answer(client, seed=4, max_new_tokens=12))
        await wait_for(client, running=3, waiting=1)
        daemon.process.send_signal(signal.SIGUSR1)
        for error in await asyncio.gather(*map(_end, streams)):
            assert isinstance(error, InternalError)
            assert error.reason == "STEP_FAILED"
        assert (await waiting).token_ids == before.token_ids
        await quiet(client)
        assert daemon.log.count("a step failed") == 1, "the cause is in the log, once"
        daemon.terminate()
        assert daemon.wait_exit() == 0


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.asyncio
async def test_a_lost_device_ends_every_stream_and_the_daemon_with_a_sentence(
    long_toy: Path, kernels: str
) -> None:
    async with _faulty(long_toy, "--max-rows", "2", "--kernels", kernels) as (daemon, client):
        watch = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == STATUS.SERVING
        running = [client.stream(prompt, **ENDLESS) for prompt in PROMPTS[:2]]
        for stream in running:
            await anext(stream)
        waiting = client.stream(PROMPT, **ENDLESS)
        await wait_for(client, running=2, waiting=1)
        daemon.process.send_signal(signal.SIGUSR2)
        for error in await asyncio.gather(*map(_end, running)):
            assert isinstance(error, InternalError)
        error = await _end(waiting)
        assert isinstance(error, NotReady)
        assert error.message == "not serving: the device is lost"
        assert error.retry_after_s
        assert (await watch.read()).status == STATUS.NOT_SERVING
        watch.cancel()
        assert await asyncio.to_thread(daemon.wait_exit) == 1
        assert daemon.log.splitlines()[-1].startswith("specd: the device is lost: device error")
        assert not daemon.ready_file.exists()
