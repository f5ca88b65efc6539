"""Health: every watcher is told, and none can hold up the daemon."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from specd_client import Client
from specd_client.errors import error_from
from specd_client.v1 import admin_pb2, admin_pb2_grpc

from tests.e2e.calls import PATIENCE_S
from tests.support.daemon import Daemon, spawned
from tests.support.deaf_reader import DeafReader

STATUS = health_pb2.HealthCheckResponse
WATCH, CHECK = "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/Check"
REFLECT = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


def _watch(client: Client, service: str = "") -> Any:
    stub = health_pb2_grpc.HealthStub(client.channel)
    return stub.Watch(health_pb2.HealthCheckRequest(service=service))


async def _told(watch: Any) -> int:
    async with asyncio.timeout(PATIENCE_S):
        return int((await watch.read()).status)


@pytest.mark.asyncio
async def test_a_watcher_that_leaves_takes_nothing_from_the_others(toy: Path) -> None:
    with spawned(toy) as daemon:
        daemon.wait_ready()
        async with (
            Client(daemon.address) as client,
            grpc.aio.insecure_channel(daemon.admin_address) as admin,
        ):
            stays, leaves = _watch(client), _watch(client)
            assert await _told(stays) == await _told(leaves) == STATUS.SERVING
            leaves.cancel()
            await admin_pb2_grpc.AdminServiceStub(admin).Drain(admin_pb2.DrainRequest())
            assert await _told(stays) == STATUS.NOT_SERVING
            stays.cancel()


@pytest.mark.asyncio
async def test_a_watcher_that_reads_nothing_holds_up_neither_the_others_nor_the_end(
    toy: Path,
) -> None:
    with spawned(toy) as daemon:
        daemon.wait_ready()
        request = health_pb2.HealthCheckRequest().SerializeToString()
        with DeafReader(daemon.address, WATCH, request):
            async with Client(daemon.address) as client:
                watch = _watch(client)
                assert await _told(watch) == STATUS.SERVING
                daemon.terminate()
                assert await _told(watch) == STATUS.NOT_SERVING
                watch.cancel()
            assert await asyncio.to_thread(daemon.wait_exit, 10) == 0
        daemon.check_log()


@pytest.mark.asyncio
async def test_a_service_that_is_not_there_is_unknown_to_whoever_watches_for_it(
    daemon: Daemon,
) -> None:
    async with Client(daemon.address) as client:
        watch = _watch(client, "specd.v2.GenerationService")
        assert await _told(watch) == STATUS.SERVICE_UNKNOWN
        watch.cancel()


@pytest.mark.parametrize("method", [WATCH, CHECK])
@pytest.mark.asyncio
async def test_bytes_that_are_no_request_are_invalid_argument(daemon: Daemon, method: str) -> None:
    async with grpc.aio.insecure_channel(daemon.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in channel.unary_stream(method)(b"\xff\xff\xff"):
                pass
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_from(refused.value).reason == "INVALID_FIELD"


@pytest.mark.asyncio
async def test_bytes_that_are_no_question_get_an_answer_of_reflection(daemon: Daemon) -> None:
    async with grpc.aio.insecure_channel(daemon.address) as channel:
        call = channel.stream_stream(
            REFLECT, response_deserializer=reflection_pb2.ServerReflectionResponse.FromString
        )(iter([b"\xff\xff\xff"]))
        error = (await call.read()).error_response
        assert error.error_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert await call.code() is grpc.StatusCode.OK
