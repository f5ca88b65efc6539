"""ModelService, health and reflection, and what tools make of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from specd_client import Client
from specd_client.errors import error_from
from specd_client.v1 import model_pb2 as pb

from specd import __version__
from specd.server.info import MAX_WATCHERS
from tests.e2e.calls import CONTEXT_LENGTH, PROMPT, answer, stubs
from tests.support.daemon import Daemon

SERVICES = ("specd.v1.GenerationService", "specd.v1.ModelService")
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.mark.asyncio
async def test_get_model_describes_the_file(daemon: Daemon, toy: Path) -> None:
    async with stubs(daemon.address) as calls:
        model = (await calls.model.GetModel(pb.GetModelRequest())).model
        named = (await calls.model.GetModel(pb.GetModelRequest(model=str(toy)))).model
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await calls.model.GetModel(pb.GetModelRequest(model="gpt"))
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    assert named == model
    assert (model.name, model.architecture) == (str(toy), "llama")
    assert (model.context_length, model.vocab_size) == (CONTEXT_LENGTH, 512)
    assert list(model.eos_token_ids) == [509, 511]  # <|endoftext|> and <|im_end|>
    assert len(model.tokenizer_fingerprint) == 64
    assert model.has_chat_template
    assert model.default_sampling.HasField("temperature")
    assert list(model.drafters) == ["grammar", "ngram"]
    assert list(model.default_drafters) == ["ngram"]
    assert model.max_draft_tokens > 0


@pytest.mark.parametrize(
    "text",
    [PROMPT, "🙂 ď 한국어 สวัสดี 世界", "a\r\n\t b  ", "👩‍👩‍👧", "\x00\x7f", "<|im_start|>user"],
)
@pytest.mark.asyncio
async def test_detokenize_gives_back_what_tokenize_took(daemon: Daemon, text: str) -> None:
    async with stubs(daemon.address) as calls:
        ids = (await calls.model.Tokenize(pb.TokenizeRequest(input={"text": text}))).token_ids
        request = pb.DetokenizeRequest(token_ids=ids, skip_special_tokens=False)
        assert (await calls.model.Detokenize(request)).text == text


@pytest.mark.asyncio
async def test_tokenize_gives_the_ids_that_a_generation_starts_from(daemon: Daemon) -> None:
    async with stubs(daemon.address) as calls, Client(daemon.address) as client:
        for prompt in (
            {"text": PROMPT},
            {"chat": {"messages": [{"role": "user", "content": "Hi"}]}},
            {"tokens": {"ids": [0, 1, 511]}},
        ):
            ids = (await calls.model.Tokenize(pb.TokenizeRequest(input=prompt))).token_ids
            as_ids = await answer(client, ids, temperature=0, max_new_tokens=8)
            assert as_ids.usage.prompt_tokens == len(ids)
            if "text" in prompt:
                as_text = await answer(client, PROMPT, temperature=0, max_new_tokens=8)
                assert as_text.token_ids == as_ids.token_ids


@pytest.mark.asyncio
async def test_detokenize_leaves_special_tokens_out_by_default(daemon: Daemon) -> None:
    async with stubs(daemon.address) as calls:
        text = (await calls.model.Detokenize(pb.DetokenizeRequest(token_ids=[72, 511, 105]))).text
        none = (await calls.model.Detokenize(pb.DetokenizeRequest())).text
    assert (text, none) == ("Hi", "")


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("Tokenize", pb.TokenizeRequest(), "input"),
        ("Tokenize", pb.TokenizeRequest(input={"tokens": {"ids": [512]}}), "input.tokens.ids[0]"),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[1, 512]), "token_ids[1]"),
        ("WatchServerInfo", pb.WatchServerInfoRequest(interval={"nanos": 1}), "interval"),
        ("WatchServerInfo", pb.WatchServerInfoRequest(interval={"seconds": 3601}), "interval"),
    ],
)
@pytest.mark.asyncio
async def test_bad_input_is_invalid_argument_with_its_path(
    daemon: Daemon, method: str, request_: Any, field: str
) -> None:
    async with stubs(daemon.address) as calls:
        call = getattr(calls.model, method)(request_)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await (call.read() if method == "WatchServerInfo" else call)
    error = error_from(raised.value)
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert [violation.field for violation in error.field_violations] == [field]


@pytest.mark.asyncio
async def test_server_info_tells_what_it_is_and_counts_what_it_did(
    daemon: Daemon, toy: Path
) -> None:
    async with Client(daemon.address) as client:
        before = await client.server_info()
        run = await answer(client, "Nobody speaks. " * 8, temperature=0, max_new_tokens=30)
        after = await client.server_info()
    assert (before.version, before.model) == (__version__, str(toy))
    assert before.arithmetic_fingerprint == run.started.arithmetic_fingerprint
    assert before.invariance == pb.INVARIANCE_MODE_STRICT
    assert not before.probe_findings
    assert before.limits.context_length == CONTEXT_LENGTH
    total = run.speculation.total
    grown = {
        name: getattr(after.counters, name) - getattr(before.counters, name)
        for name in ("steps", "real_positions", "pad_positions")
    }
    assert grown["steps"] >= total.verify_steps
    # Every prompt token and every token behind the first answer was computed, and every draft.
    computed = run.usage.prompt_tokens + total.verify_steps - 1 + total.draft_tokens
    assert grown["real_positions"] == computed
    assert grown["pad_positions"] == sum(bucket.pad_positions for bucket in after.bucket_waste) - (
        sum(bucket.pad_positions for bucket in before.bucket_waste)
    )


@pytest.mark.asyncio
async def test_watch_server_info_tells_at_once_and_then_again(daemon: Daemon) -> None:
    async with stubs(daemon.address) as calls:
        request = pb.WatchServerInfoRequest(interval={"nanos": 100_000_000})
        call = calls.model.WatchServerInfo(request)
        infos = [(await call.read()).info for _ in range(3)]
        call.cancel()
    assert {info.version for info in infos} == {__version__}


@pytest.mark.asyncio
async def test_so_many_may_watch_and_no_more(daemon: Daemon) -> None:
    async with stubs(daemon.address) as calls:
        request = pb.WatchServerInfoRequest(interval={"seconds": 3600})
        watches = [calls.model.WatchServerInfo(request) for _ in range(MAX_WATCHERS)]
        for watch in watches:
            await watch.read()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await calls.model.WatchServerInfo(request).read()
        error = error_from(refused.value)
        assert (error.code.name, error.reason) == ("RESOURCE_EXHAUSTED", "TOO_MANY_WATCHERS")
        for watch in watches:
            watch.cancel()


@pytest.mark.parametrize("name", ["", *SERVICES])
@pytest.mark.asyncio
async def test_health_is_serving_for_the_daemon_and_each_service(daemon: Daemon, name: str) -> None:
    async with stubs(daemon.address) as calls:
        health = health_pb2_grpc.HealthStub(calls.channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == SERVING


@pytest.mark.asyncio
async def test_health_of_an_unknown_service_is_not_found(daemon: Daemon) -> None:
    async with stubs(daemon.address) as calls:
        health = health_pb2_grpc.HealthStub(calls.channel)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await health.Check(health_pb2.HealthCheckRequest(service="specd.v1.Nothing"))
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
@pytest.mark.asyncio
async def test_reflection_lists_the_services_and_gives_their_files(
    daemon: Daemon, version: str
) -> None:
    request = reflection_pb2.ServerReflectionRequest

    async def questions() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        yield request(list_services="")
        yield request(file_containing_symbol="specd.v1.GenerationService")
        yield request(file_by_filename="specd/v1/types.proto")
        yield request(file_containing_symbol="specd.v1.Nothing")

    async with stubs(daemon.address) as calls:
        ask = calls.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=request.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        listed, symbol, file, nothing = [response async for response in ask(questions())]
    names = {service.name for service in listed.list_services_response.service}
    assert names == {
        *SERVICES,
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    files = [
        FileDescriptorProto.FromString(raw)
        for response in (symbol, file)
        for raw in response.file_descriptor_response.file_descriptor_proto
    ]
    assert {"specd/v1/generation.proto", "specd/v1/types.proto"} <= {file.name for file in files}
    assert nothing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def _curl(*arguments: str) -> str:
    """What `buf curl` prints."""
    buf = Path(sys.executable).with_name("buf")
    command = [str(buf), "curl", "--protocol", "grpc", "--http2-prior-knowledge", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("version", ["grpc-v1", "grpc-v1alpha"])
def test_buf_curl_lists_every_method_by_either_reflection(daemon: Daemon, version: str) -> None:
    listed = _curl(
        "--list-methods", "--reflect-protocol", version, f"http://{daemon.address}"
    ).split()
    for method in ("GenerationService/StreamGenerate", "ModelService/WatchServerInfo"):
        assert f"specd.v1.{method}" in listed
    for service in (
        "health.v1.Health/Watch",
        "reflection.v1.ServerReflection/ServerReflectionInfo",
    ):
        assert f"grpc.{service}" in listed


def test_buf_curl_streams_with_nothing_but_the_address(daemon: Daemon) -> None:
    data = {"input": {"text": PROMPT}, "stop": {"maxNewTokens": 5, "ignoreEos": True}}
    url = f"http://{daemon.address}/specd.v1.GenerationService/StreamGenerate"
    decoder, rest, events = json.JSONDecoder(), _curl("-d", json.dumps(data), url).strip(), []
    while rest:
        event, end = decoder.raw_decode(rest)
        events.append(event)
        rest = rest[end:].lstrip()
    assert "started" in events[0]
    assert events[-1]["finished"]["usage"]["completionTokens"] == 5
