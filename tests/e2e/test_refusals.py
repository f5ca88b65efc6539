"""What the daemon refuses: by name, before anything is sent, and without any work done."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from specd_client import Client
from specd_client.errors import CallFailed, error_from
from specd_client.v1 import generation_pb2 as pb

from tests.e2e.calls import CONTEXT_LENGTH, PROMPT, Stubs, answer, stream_request, stubs
from tests.e2e.calls import wait_for as wait_for_counters
from tests.support.daemon import Daemon, daemon_process, running_daemon

VOCABULARY = 512
INF, NAN = float("inf"), float("nan")


def _tokens(*ids: int) -> dict[str, Any]:
    return {"input": {"tokens": {"ids": ids}}}


def _chat(**parts: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hi"}]
    return {"input": {"chat": {"messages": messages} | parts}}


def _sampling(name: str, value: float) -> tuple[str, dict[str, Any]]:
    return f"sampling.{name}", {"sampling": {name: value}}


def _structured(**stop: Any) -> dict[str, Any]:
    return {"stop": stop, "structure": {"regex": "a+"}}


INVALID: list[tuple[str, dict[str, Any]]] = [
    ("input", {"input": {}}),
    ("input", {"input": None}),
    ("input.text", {"input": {"text": ""}}),
    ("input.tokens.ids", _tokens()),
    ("input.tokens.ids[1]", _tokens(1, VOCABULARY)),
    ("input.tokens.ids[0]", _tokens(2**32 - 1)),
    ("input.add_special_tokens", {"input": {"tokens": {"ids": [1]}, "add_special_tokens": True}}),
    ("input.add_special_tokens", {"input": _chat()["input"] | {"add_special_tokens": True}}),
    ("input.chat.messages", _chat(messages=[])),
    ("input.chat.messages[0].role", _chat(messages=[{"role": "boss", "content": "x"}])),
    ("request_id", {"request_id": "x" * 257}),
    ("request_id", {"request_id": "a\nb"}),
    *(("sampling.temperature", {"sampling": {"temperature": t}}) for t in (-1.0, NAN, INF, -INF)),
    *(("sampling.top_p", {"sampling": {"top_p": p}}) for p in (0.0, -0.5, 1.5, NAN)),
    *(("sampling.min_p", {"sampling": {"min_p": p}}) for p in (-0.1, 1.1, NAN)),
    ("sampling.top_k", {"sampling": {"top_k": 2**32 - 1}}),
    *(("sampling.num_sequences", {"sampling": {"num_sequences": n}}) for n in (0, 17)),
    *(_sampling("repetition_penalty", v) for v in (0.0, -1.0, 0.001, 101.0, NAN, INF)),
    *(_sampling("presence_penalty", value) for value in (-101.0, 101.0, NAN, INF)),
    *(_sampling("frequency_penalty", value) for value in (-101.0, 101.0, NAN, -INF)),
    ("sampling.logit_bias[512]", {"sampling": {"logit_bias": {VOCABULARY: 1.0}}}),
    ("sampling.logit_bias[4294967295]", {"sampling": {"logit_bias": {2**32 - 1: 1.0}}}),
    *(("sampling.logit_bias[7]", {"sampling": {"logit_bias": {7: v}}}) for v in (NAN, INF, -1001)),
    ("sampling.logit_bias", {"sampling": {"logit_bias": dict.fromkeys(range(1025), 0.0)}}),
    ("stop.max_new_tokens", {"stop": {"max_new_tokens": 0}}),
    ("stop.min_new_tokens", {"stop": {"max_new_tokens": 4, "min_new_tokens": 5}}),
    ("stop.min_new_tokens", {"stop": {"min_new_tokens": CONTEXT_LENGTH}}),
    ("stop.min_new_tokens", _structured(min_new_tokens=1)),
    ("stop.ignore_eos", _structured(ignore_eos=True)),
    ("stop.stop_strings", {"stop": {"stop_strings": ["a"] * 17}}),
    ("stop.stop_strings[1]", {"stop": {"stop_strings": ["a", ""]}}),
    ("stop.stop_strings[0]", {"stop": {"stop_strings": ["a" * 1025]}}),
    ("stop.stop_token_ids", {"stop": {"stop_token_ids": [1] * 257}}),
    ("stop.stop_token_ids[0]", {"stop": {"stop_token_ids": [VOCABULARY + 5]}}),
    ("speculation.mode", {"speculation": {"mode": 1, "drafters": ["ngram"]}}),
    ("speculation.mode", {"speculation": {"mode": 1, "max_draft_tokens": 0}}),
    ("speculation.mode", {"speculation": {"mode": 9}}),
    ("speculation.max_draft_tokens", {"speculation": {"max_draft_tokens": 65}}),
    ("speculation.drafters[1]", {"speculation": {"drafters": ["ngram", "ngram"]}}),
    ("speculation.draft_budget", {"speculation": {"draft_budget": {}}}),
    ("speculation.draft_budget", {"speculation": {"draft_budget": {"seconds": 2}}}),
    ("speculation.draft_budget", {"speculation": {"draft_budget": {"nanos": -1}}}),
    ("output.logprob_basis", {"output": {"logprob_basis": 9}}),
    ("output.logprob_basis", {"output": {"logprob_basis": 1}}),
    ("output.logprob_basis", {"output": {"logprob_basis": 2, "prompt_logprobs": 1}}),
    ("output.top_logprobs", {"output": {"top_logprobs": 21}}),
    ("output.prompt_logprobs", {"output": {"prompt_logprobs": 21}}),
    ("structure", {"structure": {}}),
    ("structure.json_schema", {"structure": {"json_schema": ""}}),
    ("structure.regex", {"structure": {"regex": "a" * 262_145}}),
    ("structure.grammar", {"structure": {"grammar": ""}}),
    ("structure.choice.values", {"structure": {"choice": {}}}),
    ("structure.choice.values[1]", {"structure": {"choice": {"values": ["a", "a"]}}}),
]

UNSUPPORTED: list[tuple[str, dict[str, Any]]] = [
    ("input.chat.tools", _chat(tools=[{"name": "f"}])),
    ("input.chat.template_arguments", _chat(template_arguments={"a": 1})),
    ("speculation.prediction", {"speculation": {"prediction": {"text": "x"}}}),
    ("speculation.prediction", {"speculation": {"prediction": {"tokens": {"ids": [1]}}}}),
    ("priority", {"priority": -1}),
    ("tenant", {"tenant": "me"}),
]

# Set, and no more than the default that everybody gets.
HARMLESS: list[dict[str, Any]] = [
    {"sampling": {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": -0.0}},
    {"sampling": {"num_sequences": 1}},
    {"stop": {"max_new_tokens": 2, "min_new_tokens": 0}},
    {"stop": {"max_new_tokens": 2, "stop_token_ids": [1, 1]}},
    {"sampling": {"logit_bias": {1: 0.0}}},
    {"output": {"top_logprobs": 0, "logprob_basis": 0}},
    {"priority": 0},
    {"speculation": {"mode": 0}},
    {"speculation": {"max_draft_tokens": 0, "drafters": ["ngram"]}},
    {"speculation": {"mode": 1}},
    {"model": ""},
]


async def _refusal(calls: Stubs, request: Message) -> CallFailed:
    """The error of a call that has to be refused without a message."""
    if isinstance(request, pb.StreamGenerateRequest):
        call = calls.generation.StreamGenerate(request)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call.read()
    else:
        call = calls.generation.Generate(request)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call
    return error_from(raised.value)


async def _check(daemon: Daemon, code: grpc.StatusCode, field: str, parts: dict[str, Any]) -> None:
    async with Client(daemon.address) as client, stubs(daemon.address) as calls:
        before = (await client.server_info()).counters
        streamed = stream_request(**parts)
        whole = pb.GenerateRequest.FromString(streamed.SerializeToString())
        for request in (streamed, whole):
            error = await _refusal(calls, request)
            assert error.code is code, error.message
            assert [violation.field for violation in error.field_violations] == [field]
            assert field in error.message
            assert error.retry_after_s is None
        after = (await client.server_info()).counters
        assert (after.steps, after.running, after.waiting) == (before.steps, 0, 0)


@pytest.mark.parametrize(("field", "parts"), INVALID)
@pytest.mark.asyncio
async def test_bad_input_is_invalid_argument_with_its_path(
    daemon: Daemon, field: str, parts: dict[str, Any]
) -> None:
    await _check(daemon, grpc.StatusCode.INVALID_ARGUMENT, field, parts)


@pytest.mark.parametrize(("field", "parts"), UNSUPPORTED)
@pytest.mark.asyncio
async def test_what_does_not_exist_yet_is_unimplemented_with_its_path(
    daemon: Daemon, field: str, parts: dict[str, Any]
) -> None:
    await _check(daemon, grpc.StatusCode.UNIMPLEMENTED, field, parts)


@pytest.mark.parametrize("parts", HARMLESS)
@pytest.mark.asyncio
async def test_a_field_that_says_off_is_honoured(daemon: Daemon, parts: dict[str, Any]) -> None:
    async with stubs(daemon.address) as calls:
        call = calls.generation.StreamGenerate(stream_request(**parts))
        messages = [message async for message in call]
    assert messages[-1].HasField("finished")


@pytest.mark.parametrize(
    ("number", "path"), [(999, "#999"), (3, "input.#999"), (4, "sampling.#999"), (6, "output.#999")]
)
@pytest.mark.asyncio
async def test_a_field_of_a_newer_protocol_is_unimplemented(
    daemon: Daemon, number: int, path: str
) -> None:
    unknown = _varint(999 << 3) + b"\x01"
    raw = stream_request().SerializeToString()
    # A second occurrence of a message field is merged into the first.
    raw += unknown if number == 999 else _varint(number << 3 | 2) + _varint(len(unknown)) + unknown
    async with stubs(daemon.address) as calls:
        error = await _refusal(calls, pb.StreamGenerateRequest.FromString(raw))
    assert error.code is grpc.StatusCode.UNIMPLEMENTED
    assert [violation.field for violation in error.field_violations] == [path]


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


@pytest.mark.parametrize(
    ("kind", "parts"),
    [("model", {"model": "gpt"}), ("drafter", {"speculation": {"drafters": ["ngram", "eagle"]}})],
)
@pytest.mark.asyncio
async def test_an_unknown_name_is_not_found_and_what_there_is_is_told(
    daemon: Daemon, kind: str, parts: dict[str, Any], toy: Path
) -> None:
    async with stubs(daemon.address) as calls:
        error = await _refusal(calls, stream_request(**parts))
    name, known = ("gpt", str(toy)) if kind == "model" else ("eagle", "ngram")
    assert error.code is grpc.StatusCode.NOT_FOUND
    assert error.resource == (kind, name)
    assert known in error.message


@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
@pytest.mark.parametrize("raw", [b"\xff\xff\xff", b"\x0a\x02\xff\xfe", b"\x1a\x7f"])
@pytest.mark.asyncio
async def test_bytes_that_are_no_request_are_invalid_argument_and_no_traceback(
    daemon: Daemon, method: str, raw: bytes
) -> None:
    async with stubs(daemon.address) as calls:
        path = f"/specd.v1.GenerationService/{method}"
        make = calls.channel.unary_unary if method == "Generate" else calls.channel.unary_stream
        call = make(path, request_serializer=bytes)(raw)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await (call if method == "Generate" else call.read())
    error = error_from(raised.value)
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD")
    daemon.check_log()


@pytest.mark.asyncio
async def test_a_refusal_that_repeats_a_huge_field_still_arrives(daemon: Daemon) -> None:
    async with stubs(daemon.address) as calls:
        error = await _refusal(calls, stream_request(model="m\u00e4" * 100_000))
    assert error.code is grpc.StatusCode.NOT_FOUND
    assert error.reason == "UNKNOWN_NAME"


@pytest.mark.asyncio
async def test_an_illegal_stop_token_changes_nothing_for_a_neighbour(daemon: Daemon) -> None:
    options: dict[str, Any] = {"temperature": 0, "max_new_tokens": 200, "ignore_eos": True}
    async with Client(daemon.address) as client, stubs(daemon.address) as calls:
        solo = await answer(client, **options)
        stream = client.stream(PROMPT, return_token_ids=True, **options)
        events = [await anext(stream)]
        bad = {"max_new_tokens": 4, "stop_token_ids": [VOCABULARY + 5]}
        error = await _refusal(calls, stream_request(stop=bad))
        events += [event async for event in stream]
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    tokens = [token for event in events for token in getattr(event, "token_ids", ())]
    assert tuple(tokens) == solo.token_ids


@pytest.mark.asyncio
async def test_a_live_request_s_id_is_taken_and_the_live_request_goes_on(daemon: Daemon) -> None:
    options: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
    async with Client(daemon.address) as client, stubs(daemon.address) as calls:
        stream = client.stream(PROMPT, request_id="twice", **options)
        first = [await anext(stream)]
        error = await _refusal(calls, stream_request(request_id="twice"))
        assert error.code is grpc.StatusCode.ALREADY_EXISTS
        assert error.resource == ("request", "twice")
        first += [event async for event in stream]
        assert first[-1].usage.completion_tokens == CONTEXT_LENGTH - first[0].prompt_tokens
        again = await answer(client, request_id="twice", max_new_tokens=2)
        assert again.request_id == "twice"


@pytest.fixture(scope="module")
def narrow_daemon(toy: Path) -> Iterator[Daemon]:
    with daemon_process(toy, "--max-rows", "1", "--max-waiting", "1") as daemon:
        yield daemon


@pytest.mark.asyncio
async def test_a_full_queue_is_resource_exhausted_and_told_to_come_back(
    narrow_daemon: Daemon,
) -> None:
    options: dict[str, Any] = {"ignore_eos": True, "temperature": 0}
    async with Client(narrow_daemon.address) as client, stubs(narrow_daemon.address) as calls:
        running = client.stream(PROMPT, request_id="running", **options)
        await anext(running)
        waiting = client.stream(PROMPT, request_id="waiting", max_new_tokens=3, **options)
        await wait_for_counters(client, running=1, waiting=1)
        error = await _refusal(calls, stream_request())
        assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (error.reason, error.metadata) == ("QUEUE_FULL", {"limit": "1"})
        assert error.retry_after_s and error.retry_after_s > 0
        running.cancel()
        assert [event async for event in waiting][-1].usage.completion_tokens == 3


@pytest.mark.asyncio
async def test_a_client_s_retry_policy_gets_through_a_full_queue(narrow_daemon: Daemon) -> None:
    # gRPC retries a call only if nothing of its answer has come, headers included.
    policy = {
        "maxAttempts": 5,
        "initialBackoff": "0.1s",
        "maxBackoff": "1s",
        "backoffMultiplier": 2,
        "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
    }
    methods = [{"name": [{"service": "specd.v1.GenerationService"}], "retryPolicy": policy}]
    retrying = [("grpc.service_config", json.dumps({"methodConfig": methods}))]
    async with (
        Client(narrow_daemon.address) as client,
        Client(narrow_daemon.address, channel_options=retrying) as patient,
        stubs(narrow_daemon.address) as calls,
    ):
        await patient.server_info()  # connected: its call goes out in front of the next one
        running = client.stream(PROMPT, ignore_eos=True)
        await anext(running)
        waiting = client.stream(PROMPT, ignore_eos=True)
        await wait_for_counters(client, running=1, waiting=1)
        started_s = time.monotonic()
        late = patient.stream(PROMPT, max_new_tokens=2, ignore_eos=True)
        await _refusal(calls, stream_request())  # by now the other one was refused too
        running.cancel()
        waiting.cancel()
        assert [event async for event in late][-1].usage.completion_tokens == 2
        assert time.monotonic() - started_s > 0.9, "it came back when it was told to, after 1 s"


@pytest.mark.asyncio
async def test_without_a_queue_a_free_row_takes_a_request(toy: Path) -> None:
    async with running_daemon(toy, "--max-rows", "1", "--max-waiting", "0") as daemon:
        async with Client(daemon.address) as client, stubs(daemon.address) as calls:
            running = client.stream(PROMPT, ignore_eos=True)
            await anext(running)
            error = await _refusal(calls, stream_request())
            assert (error.reason, error.metadata) == ("QUEUE_FULL", {"limit": "0"})
            running.cancel()
            await wait_for_counters(client, running=0)
            await answer(client, max_new_tokens=1)
