"""How large a message may be, also when it comes compressed."""

from __future__ import annotations

import grpc
import pytest
from specd_client import Client
from specd_client.v1 import generation_pb2 as pb
from specd_client.v1 import generation_pb2_grpc

from tests.e2e.calls import answer, stream_request, stubs
from tests.support.daemon import Daemon, resident_bytes


@pytest.mark.asyncio
async def test_a_message_of_more_than_four_mebibytes_is_refused_and_the_daemon_goes_on(
    daemon: Daemon,
) -> None:
    async with stubs(daemon.address) as calls, Client(daemon.address) as client:
        call = calls.generation.StreamGenerate(stream_request(input={"text": "x" * (5 << 20)}))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call.read()
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len((await answer(client, max_new_tokens=2, ignore_eos=True)).token_ids) == 2


@pytest.mark.asyncio
async def test_a_compressed_message_is_read_and_one_that_unfolds_beyond_the_limit_is_refused(
    daemon: Daemon,
) -> None:
    async with grpc.aio.insecure_channel(
        daemon.address, compression=grpc.Compression.Gzip
    ) as channel:
        generate = generation_pb2_grpc.GenerationServiceStub(channel).Generate
        small = pb.GenerateRequest(input={"text": "x" * 300}, stop={"max_new_tokens": 1})
        assert (await generate(small)).usage.prompt_tokens == 300
        bomb = pb.GenerateRequest(input={"text": "x" * (100 << 20)})
        before = resident_bytes(daemon.pid)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await generate(bomb)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert resident_bytes(daemon.pid) - before < 50 << 20
