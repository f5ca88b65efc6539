"""Faults of other servers at their border: leaks per call, processes of drafters, huge requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from specd_client import Client, FinishReason
from specd_client.errors import error_from
from specd_client.v1 import generation_pb2 as pb
from specd_client.v1 import model_pb2, types_pb2

from benchmarks.toy_gguf import build_toy_model
from specd.server.convert_model import MAX_DETOKENIZED_IDS
from tests.e2e.calls import (
    PROMPT,
    Stubs,
    answer,
    check_sums,
    detokenized,
    quiet,
    stream_request,
    stubs,
    tokenized,
)
from tests.e2e.drafters_under_test import RECORDING, spec
from tests.support.daemon import Daemon, daemon_process, resident_bytes

NUM_CANCELS = 5000  # about 2 ms each
MAX_RSS_GROWTH = 20 << 20
MIB = 1 << 20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
@pytest.mark.asyncio
async def test_five_thousand_cancelled_streams_leave_no_memory_behind(daemon: Daemon) -> None:
    async with Client(daemon.address) as client, stubs(daemon.address) as calls:

        async def leave(num_messages: int) -> None:
            call = calls.generation.StreamGenerate(stream_request(stop={"ignore_eos": True}))
            for _ in range(num_messages):
                await call.read()
            call.cancel()

        async def leave_many(number: int) -> None:
            for first in range(0, number, 8):
                await asyncio.gather(*(leave(place % 3) for place in range(first, first + 8)))
            await quiet(client)

        await leave_many(500)  # pools and caches have their size by then
        before = resident_bytes(daemon.pid), (await client.server_info()).counters.tasks
        await leave_many(NUM_CANCELS)
        after = resident_bytes(daemon.pid), (await client.server_info()).counters.tasks
    assert after[0] - before[0] < MAX_RSS_GROWTH
    assert after[1] == before[1]


@dataclass(frozen=True)
class Starting:
    """A daemon whose drafters start processes, and what they replay."""

    daemon: Daemon
    recording: Path


# `terminating` sends its child a signal that the daemon itself heeds.
STARTERS = ("running", "forking", "spawning", "terminating")


@pytest.fixture(scope="module")
def starting(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starting]:
    recording = tmp_path_factory.mktemp("starting") / "recording.json"
    flags = [part for kind in STARTERS for part in ("--drafter", spec(kind))]
    env, here = {RECORDING: str(recording)}, Path(__file__).parent
    with daemon_process(toy, *flags, env=env, cwd=here) as daemon:
        yield Starting(daemon, recording)


@pytest.mark.parametrize("kind", STARTERS)
@pytest.mark.asyncio
async def test_a_drafter_may_start_processes_and_end_them(starting: Starting, kind: str) -> None:
    options: dict[str, Any] = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    async with Client(starting.daemon.address) as client:
        plain = await answer(client, speculation=False, **options)
        text = [*await tokenized(client, PROMPT), *plain.token_ids]
        starting.recording.write_text(json.dumps([text]))
        run = await answer(client, drafters=[spec(kind)], draft_budget_s=1.0, **options)
        assert run.token_ids == plain.token_ids
        check_sums(run)
        total = run.speculation.total
        # Right, unless a slow machine took a second for a process.
        assert total.faults == 0
        assert total.accepted_draft_tokens == total.draft_tokens > 0 or total.late
        # The daemon still serves: nobody took the child's end for its own.
        again = await answer(client, speculation=False, **options)
        assert again.token_ids == plain.token_ids


@pytest.mark.asyncio
async def test_a_stop_string_is_heeded_where_no_text_is_asked_for(daemon: Daemon) -> None:
    options: dict[str, Any] = {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}
    async with Client(daemon.address) as client:
        plain = await answer(client, **options)
        stop = plain.text[20:24]
        shown = await answer(client, stop_strings=[stop], **options)
        silent = await answer(client, stop_strings=[stop], return_text=False, **options)
    assert shown.finish_reason is silent.finish_reason is FinishReason.STOP_STRING
    assert silent.matched_stop_string == stop
    assert silent.token_ids == shown.token_ids
    assert len(silent.token_ids) < len(plain.token_ids)
    assert silent.text == ""


def _chat(num_messages: int) -> pb.GenerateRequest:
    messages = [types_pb2.ChatMessage(role="user")] * num_messages
    return pb.GenerateRequest(input={"chat": types_pb2.ChatInput(messages=messages)})


# Each about as large as a message may be.
HUGE: dict[str, Message] = {
    "text": pb.GenerateRequest(input={"text": "the captain " * 340_000}),
    "word": pb.GenerateRequest(input={"text": "\x01" * 4_000_000}),
    "special": pb.GenerateRequest(input={"text": "<|im_end|>" * 400_000}),
    "tokens": pb.GenerateRequest(input={"tokens": {"ids": [65] * 4_000_000}}),
    "chat": _chat(500_000),
    "tools": pb.GenerateRequest(input={"chat": types_pb2.ChatInput(tools=[{}] * 1_000_000)}),
    "stop": pb.GenerateRequest(input={"text": "x"}, stop={"stop_token_ids": [1] * 4_000_000}),
    "tokenize": model_pb2.TokenizeRequest(input={"text": "the captain " * 340_000}),
    "detokenize": model_pb2.DetokenizeRequest(token_ids=[65] * 4_000_000),
    "unknown": pb.GenerateRequest.FromString(b"\x98\x3f\x01" * 1_300_000),
}
METHODS = {
    pb.GenerateRequest: "GenerationService/Generate",
    model_pb2.TokenizeRequest: "ModelService/Tokenize",
    model_pb2.DetokenizeRequest: "ModelService/Detokenize",
}


@pytest.fixture(scope="module")
def long_daemon(models: Path) -> Iterator[Daemon]:
    """Its context takes more than ten seconds to fill."""
    path = models / "long-stream.gguf"
    build_toy_model(path, context_length=16_384)
    with daemon_process(path) as daemon:
        yield daemon


async def _send(calls: Stubs, method: str, raw: bytes) -> float:
    """Send a request that may be refused; returns when it was answered."""
    try:
        await calls.channel.unary_unary(f"/specd.v1.{method}", bytes, bytes)(raw)
    except grpc.aio.AioRpcError as error:
        assert error.code() in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED}
    return time.monotonic()


@pytest.mark.parametrize("name", HUGE)
@pytest.mark.asyncio
async def test_a_request_of_four_mebibytes_holds_up_no_stream(
    long_daemon: Daemon, name: str
) -> None:
    request = HUGE[name]
    raw = request.SerializeToString()
    assert 1.5 * MIB < len(raw) < 4 * MIB
    async with (
        Client(long_daemon.address) as client,
        stubs(long_daemon.address) as calls,
        client.stream("x", ignore_eos=True, speculation=False) as stream,
    ):
        for _ in range(20):
            await anext(stream)
        gaps: list[float] = []
        sent_s = last_s = time.monotonic()
        sent = asyncio.create_task(_send(calls, METHODS[type(request)], raw))
        while not sent.done() or not gaps:
            await anext(stream)
            gaps.append(time.monotonic() - last_s)
            last_s += gaps[-1]
        took_s = await sent - sent_s
    # What is done on the event loop, or holds Python's lock, stops the stream for as long.
    assert max(gaps) < max(0.5, took_s / 2)


@pytest.mark.asyncio
async def test_so_many_ids_become_text_and_no_more(daemon: Daemon) -> None:
    ids = [65] * MAX_DETOKENIZED_IDS  # toy ids below 256 are bytes
    async with Client(daemon.address) as client:
        assert await detokenized(client, ids) == "A" * MAX_DETOKENIZED_IDS
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await detokenized(client, [*ids, 65])
    error = error_from(refused.value)
    assert (error.reason, error.field_violations[0].field) == ("INVALID_FIELD", "token_ids")
