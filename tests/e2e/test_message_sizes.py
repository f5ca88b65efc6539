"""How large a message may be, also when it comes compressed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from specd_client import Client, Reason, WrongState
from specd_client.errors import error_from
from specd_client.v1 import generation_pb2 as pb
from specd_client.v1 import generation_pb2_grpc

from benchmarks.toy_gguf import build_toy_model
from tests.e2e.calls import answer, stream_request, stubs
from tests.support.daemon import Daemon, daemon_process, resident_bytes

# A token of which few make a long text, and a context whose log probabilities outgrow a message.
LONG_TOKEN = "y" * 1000
LONG_ID, LONG_CONTEXT = 508, 1 << 17


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


@pytest.fixture(scope="module")
def wordy(models: Path) -> Iterator[Daemon]:
    """A daemon whose answers may have any size."""
    path = models / "wordy.gguf"
    build_toy_model(path, user_defined=(LONG_TOKEN,), context_length=LONG_CONTEXT)
    with daemon_process(path) as daemon:
        yield daemon


@pytest.mark.asyncio
async def test_an_answer_that_outgrows_one_message_ends_and_a_stream_of_it_does_not(
    wordy: Daemon,
) -> None:
    parts: dict[str, Any] = {
        "sampling": {"logit_bias": {LONG_ID: 1000.0}, "num_sequences": 16},
        "stop": {"max_new_tokens": 300, "ignore_eos": True},
    }
    async with stubs(wordy.address) as calls, Client(wordy.address) as client:
        whole = pb.GenerateRequest.FromString(stream_request(**parts).SerializeToString())
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await calls.generation.Generate(whole)
        error = error_from(raised.value)
        assert isinstance(error, WrongState), "what clients do not retry"
        assert (error.reason, error.retry_after_s) == (Reason.ANSWER_TOO_LARGE, None)
        assert "StreamGenerate" in error.message
        # The clients' generate is a stream.
        options: dict[str, Any] = {"num_sequences": 16, "logit_bias": {LONG_ID: 1000}}
        run = await client.generate("x", max_new_tokens=300, **options)
    assert {sequence.text for sequence in run.sequences} == {LONG_TOKEN * 300}


@pytest.mark.asyncio
async def test_log_probabilities_of_more_tokens_than_fit_are_refused_before_any_work(
    wordy: Daemon,
) -> None:
    prompt = {"input": {"tokens": {"ids": [65] * 20_000}}}
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("StreamGenerate", "prompt_logprobs", prompt | {"output": {"prompt_logprobs": 20}}),
        ("Generate", "prompt_logprobs", prompt | {"output": {"prompt_logprobs": 20}}),
        ("Generate", "top_logprobs", {"stop": {}, "output": {"top_logprobs": 20}}),
        (
            "Generate",
            "top_logprobs",
            {
                "sampling": {"num_sequences": 16},
                "stop": {"max_new_tokens": 2000},
                "output": {"top_logprobs": 20},
            },
        ),
    ]
    async with stubs(wordy.address) as calls, Client(wordy.address) as client:
        before = (await client.server_info()).counters.steps
        for method, field, parts in cases:
            request = stream_request(**parts)
            if method == "Generate":
                call = calls.generation.Generate(
                    pb.GenerateRequest.FromString(request.SerializeToString())
                )
            else:
                call = calls.generation.StreamGenerate(request).read()
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call
            error = error_from(raised.value)
            assert error.field_violations[0].field == f"output.{field}"
            assert "do not fit one message; at most 18987" in error.message
        assert (await client.server_info()).counters.steps == before


@pytest.mark.asyncio
async def test_log_probabilities_that_fit_arrive_with_a_client_s_default_limit(
    wordy: Daemon,
) -> None:
    prompt = [65] * 5_000
    async with Client(wordy.address) as client:
        run = await answer(client, prompt, prompt_logprobs=20, max_new_tokens=1, ignore_eos=True)
    assert len(run.started.prompt_logprobs) == len(prompt)
