"""AdminService: a drain by call, on an address of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from specd_client import Client, Finished, FinishReason, NotReady
from specd_client.errors import error_from
from specd_client.v1 import admin_pb2, admin_pb2_grpc, generation_pb2

from tests.e2e.calls import PATIENCE_S, PROMPT, stream_request, stubs, wait_for
from tests.support.daemon import Daemon, spawned

STATUS = health_pb2.HealthCheckResponse
ENDLESS: dict[str, Any] = {"ignore_eos": True}


@asynccontextmanager
async def admin(daemon: Daemon) -> AsyncIterator[Any]:
    """A stub of the admin service."""
    async with grpc.aio.insecure_channel(daemon.admin_address) as channel:
        yield admin_pb2_grpc.AdminServiceStub(channel)


async def _rest(stream: Any) -> list[Any]:
    return [event async for event in stream]


@pytest.mark.asyncio
async def test_a_drain_sends_new_calls_away_and_answers_when_the_live_ones_have_ended(
    toy: Path,
) -> None:
    with spawned(toy) as daemon:
        daemon.wait_ready()
        async with Client(daemon.address, retries=False) as client, admin(daemon) as operator:
            watch = health_pb2_grpc.HealthStub(client.channel).Watch(
                health_pb2.HealthCheckRequest(service="specd.v1.GenerationService")
            )
            assert (await watch.read()).status == STATUS.SERVING
            streams = [client.stream(PROMPT, seed=n, **ENDLESS) for n in range(3)]
            for stream in streams:
                await anext(stream)
            reading = [asyncio.create_task(_rest(stream)) for stream in streams]
            draining = asyncio.create_task(_drain(operator))
            assert (await watch.read()).status == STATUS.NOT_SERVING
            with pytest.raises(NotReady, match="draining"):
                await client.generate(PROMPT)
            assert await draining == (3, 0)
            ends = await asyncio.gather(*reading)
            assert all(isinstance(events[-1], Finished) for events in ends)
            assert not daemon.ready_file.exists()
            # It stays up, for whoever wants to know, and a second drain finds nothing to do.
            assert (await client.server_info()).counters.running == 0
            assert await _drain(operator) == (0, 0)
            watch.cancel()
        daemon.terminate()
        assert daemon.wait_exit() == 0
        daemon.check_log()


async def _drain(operator: Any, **timeout: int) -> tuple[int, int]:
    request = admin_pb2.DrainRequest(timeout=timeout) if timeout else admin_pb2.DrainRequest()
    drained = await operator.Drain(request, timeout=PATIENCE_S)
    return drained.finished, drained.aborted


@pytest.mark.asyncio
async def test_a_drain_that_runs_out_of_time_ends_the_rest_with_aborted(long_toy: Path) -> None:
    with spawned(long_toy) as daemon:
        daemon.wait_ready()
        async with Client(daemon.address, retries=False) as client, admin(daemon) as operator:
            long = [client.stream(PROMPT, seed=n, **ENDLESS) for n in range(2)]
            short = client.stream(PROMPT, max_new_tokens=100, **ENDLESS)
            await wait_for(client, running=3)
            assert await _drain(operator, seconds=1) == (1, 2)
            for stream in long:
                *_, sequence, finished = await _rest(stream)
                assert isinstance(finished, Finished)
                assert sequence.finish_reason is FinishReason.ABORTED
            await _rest(short)


@pytest.mark.asyncio
async def test_unary_calls_count_as_what_they_ended_with(long_toy: Path) -> None:
    with spawned(long_toy) as daemon:
        daemon.wait_ready()
        async with Client(daemon.address) as client, stubs(daemon.address) as raw:
            request = generation_pb2.GenerateRequest(
                input={"text": PROMPT}, stop={"ignore_eos": True}
            )
            calls = [raw.generation.Generate(request) for _ in range(3)]
            await wait_for(client, running=3)
            async with admin(daemon) as operator:
                assert await _drain(operator, nanos=100_000_000) == (0, 3)
            for call in calls:
                (sequence,) = (await call).sequences
                assert sequence.finish.finish_reason == generation_pb2.FINISH_REASON_ABORTED


@pytest.mark.asyncio
async def test_whoever_asked_for_a_drain_may_leave_and_ask_again(long_toy: Path) -> None:
    with spawned(long_toy) as daemon:
        daemon.wait_ready()
        async with Client(daemon.address, retries=False) as client, admin(daemon) as operator:
            stream = client.stream(PROMPT, **ENDLESS)
            await anext(stream)
            with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
                await operator.Drain(admin_pb2.DrainRequest(), timeout=0.2)
            with pytest.raises(NotReady, match="draining"):
                await client.generate(PROMPT)
            assert await _drain(operator, nanos=1) == (0, 1)
            await _rest(stream)
        daemon.check_log()


@pytest.mark.asyncio
async def test_each_address_has_its_own_services_only(daemon: Daemon) -> None:
    async with stubs(daemon.address) as public, stubs(daemon.admin_address) as operator:
        drain = admin_pb2_grpc.AdminServiceStub(public.channel).Drain
        for call in (
            drain(admin_pb2.DrainRequest()),
            operator.generation.Generate(stream_request()),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.asyncio
async def test_a_bad_timeout_is_refused_and_drains_nothing(daemon: Daemon) -> None:
    async with Client(daemon.address, retries=False) as client, admin(daemon) as operator:
        for timeout in ({"seconds": -1}, {"nanos": -1}, {"seconds": 1 << 40}):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await operator.Drain(admin_pb2.DrainRequest(timeout=timeout))
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert error_from(refused.value).field_violations[0].field == "timeout"
        assert (await client.generate(PROMPT, max_new_tokens=1)).usage.completion_tokens == 1


@pytest.mark.asyncio
async def test_drafters_are_listed_and_those_of_the_settings_stay(daemon: Daemon) -> None:
    async with admin(daemon) as operator:
        listed = await operator.ListDrafters(admin_pb2.ListDraftersRequest())
        assert [(d.name, d.kind, d.registered) for d in listed.drafters] == [
            ("grammar", "grammar", False),
            ("ngram", "ngram", False),
        ]
        gone = await operator.DeregisterDrafter(admin_pb2.DeregisterDrafterRequest(name="other"))
        assert not gone.found
        for name, code in (
            ("", grpc.StatusCode.INVALID_ARGUMENT),
            ("ngram", grpc.StatusCode.FAILED_PRECONDITION),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await operator.DeregisterDrafter(admin_pb2.DeregisterDrafterRequest(name=name))
            assert refused.value.code() is code
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await operator.RegisterDrafter(
                admin_pb2.RegisterDrafterRequest(name="new", address="localhost:1")
            )
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.asyncio
async def test_the_admin_address_tells_its_health_and_describes_itself(daemon: Daemon) -> None:
    async with grpc.aio.insecure_channel(daemon.admin_address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "specd.v1.AdminService"):
            found = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert found.status == STATUS.SERVING
