"""How the daemon stops: streams drain, new calls are sent away, and a second signal waits for
nobody."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from specd_client import Client, Delta, Finished, FinishReason, NotReady
from specd_client.v1 import model_pb2, model_pb2_grpc

from tests.e2e.calls import PROMPT, PROMPTS, wait_for
from tests.e2e.drafters_under_test import spec
from tests.support.daemon import Daemon, spawned

STATUS = health_pb2.HealthCheckResponse
ENDLESS: dict[str, Any] = {"ignore_eos": True}


@contextmanager
def _ready(model: Path, *flags: str, **options: Any) -> Iterator[Daemon]:
    with spawned(model, *flags, **options) as daemon:
        daemon.wait_ready()
        yield daemon


async def _rest(stream: Any) -> list[Any]:
    return [event async for event in stream]


@pytest.mark.asyncio
async def test_sigterm_lets_streams_end_and_sends_new_calls_away(toy: Path) -> None:
    with _ready(toy) as daemon:
        async with Client(daemon.address, retries=False) as client:
            watch = health_pb2_grpc.HealthStub(client.channel).Watch(
                health_pb2.HealthCheckRequest(service="specd.v1.GenerationService")
            )
            assert (await watch.read()).status == STATUS.SERVING
            streams = [client.stream(prompt, **ENDLESS) for prompt in PROMPTS]
            for stream in streams:
                await anext(stream)
            daemon.terminate()
            assert (await watch.read()).status == STATUS.NOT_SERVING
            with pytest.raises(NotReady) as refused:
                await client.generate(PROMPT)
            assert refused.value.message == "not serving: draining"
            assert refused.value.retry_after_s
            ends = await asyncio.gather(*map(_rest, streams))
            for *_, sequence, finished in ends:
                assert isinstance(finished, Finished)
                assert sequence.finish_reason is FinishReason.CONTEXT_LENGTH
            watch.cancel()
        assert daemon.wait_exit() == 0
        assert not daemon.ready_file.exists()
        daemon.check_log()


@pytest.mark.asyncio
async def test_a_ready_file_that_cannot_be_removed_ends_nobody_s_stream(
    toy: Path,
) -> None:
    with _ready(toy) as daemon:
        _replace_by_a_folder(daemon.ready_file)
        async with Client(daemon.address, retries=False) as client:
            stream = client.stream(PROMPT, **ENDLESS)
            await anext(stream)
            daemon.terminate()
            assert isinstance((await _rest(stream))[-1], Finished)
        assert daemon.wait_exit() == 0
        assert "cannot remove" in daemon.log
        daemon.check_log()


def _replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.asyncio
async def test_sigint_lets_waiting_requests_be_served_too(toy: Path) -> None:
    with _ready(toy, "--max-rows", "1") as daemon:
        async with Client(daemon.address, retries=False) as client:
            first = client.stream(PROMPT, **ENDLESS)
            await anext(first)
            second = client.stream(PROMPT, max_new_tokens=3, **ENDLESS)
            await wait_for(client, running=1, waiting=1)
            daemon.process.send_signal(signal.SIGINT)
            assert (await _rest(second))[-1].usage.completion_tokens == 3
            first.cancel()
        assert daemon.wait_exit() == 0
        daemon.check_log()


@pytest.mark.asyncio
async def test_a_drain_that_runs_out_of_time_ends_streams_with_aborted(long_toy: Path) -> None:
    with _ready(long_toy, "--drain-seconds", "0.5", "--max-rows", "2") as daemon:
        async with Client(daemon.address, retries=False) as client:
            streams = [client.stream(PROMPT, seed=n, **ENDLESS) for n in range(4)]
            await wait_for(client, running=2, waiting=2)
            daemon.terminate()
            sent_s = time.monotonic()
            ends = await asyncio.gather(*map(_rest, streams))
            assert time.monotonic() - sent_s >= 0.5
            for *_, sequence, finished in ends:
                assert isinstance(finished, Finished)
                assert sequence.finish_reason is FinishReason.ABORTED
            ran = [any(isinstance(event, Delta) for event in end) for end in ends]
            assert sorted(ran) == [False, False, True, True], "the queue stood still meanwhile"
        assert daemon.wait_exit(10) == 0
        daemon.check_log()


@pytest.mark.asyncio
async def test_a_second_signal_ends_at_once_with_unavailable_for_the_rest(long_toy: Path) -> None:
    with _ready(long_toy, "--max-rows", "2") as daemon:
        async with Client(daemon.address, retries=False) as client:
            watch = health_pb2_grpc.HealthStub(client.channel).Watch(
                health_pb2.HealthCheckRequest()
            )
            assert (await watch.read()).status == STATUS.SERVING
            streams = [client.stream(PROMPT, seed=n, **ENDLESS) for n in range(4)]
            await wait_for(client, running=2, waiting=2)
            daemon.terminate()
            assert (await watch.read()).status == STATUS.NOT_SERVING  # the first was taken
            watch.cancel()
            daemon.terminate()
            sent_s = time.monotonic()
            for stream in streams:
                with pytest.raises(NotReady) as ended:
                    await _rest(stream)
                assert ended.value.reason == "NOT_SERVING"
            assert time.monotonic() - sent_s < 2
        assert daemon.wait_exit(10) == 0
        daemon.check_log()


@pytest.mark.asyncio
async def test_neither_watchers_nor_a_stuck_drafter_hold_up_the_end(toy: Path) -> None:
    with _ready(toy, "--drafter", spec("stuck"), cwd=Path(__file__).parent) as daemon:
        async with Client(daemon.address, retries=False) as client:
            run = await client.generate(PROMPT, max_new_tokens=5, temperature=0, **ENDLESS)
            assert run.speculation.total.late > 0
            health = health_pb2_grpc.HealthStub(client.channel)
            watch = health.Watch(health_pb2.HealthCheckRequest())
            info = model_pb2_grpc.ModelServiceStub(client.channel).WatchServerInfo(
                model_pb2.WatchServerInfoRequest(interval={"seconds": 3600})
            )
            await watch.read()
            await info.read()
            daemon.terminate()
            assert await asyncio.to_thread(daemon.wait_exit, 10) == 0
            watch.cancel()
            info.cancel()
        daemon.check_log()
