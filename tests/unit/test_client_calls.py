"""Every call in both forms: what reaches the server, and what comes back."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from specd_client import (
    CallCancelled,
    Client,
    DeadlineExceeded,
    Delta,
    Finished,
    SequenceFinished,
    Started,
    Unsupported,
    sync,
)
from specd_client.v1 import admin_pb2, model_pb2

from tests.support.scripted_server import (
    WHOLE,
    Refusal,
    Scripted,
    asked,
    both_forms,
    listed,
    listening,
    play,
    play_and_hang,
)


def test_both_forms_have_the_same_methods_and_parameters() -> None:
    def surface(client: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(member).parameters)
            for name, member in inspect.getmembers(client, inspect.isfunction)
            if not name.startswith("_")
        }

    assert surface(sync.Client) == surface(Client)
    assert "generate" in surface(Client)


CALLS: dict[str, tuple[Callable[[Any], Any], object, dict[str, object]]] = {
    "abort of a live one": (lambda c: c.abort("live"), True, {"request_id": "live"}),
    "abort of a dead one": (lambda c: c.abort("gone"), False, {"request_id": "gone"}),
    "the model": (lambda c: c.model(), model_pb2.ModelInfo(name="tiny"), {"model": ""}),
    "a model": (lambda c: c.model("big"), model_pb2.ModelInfo(name="big"), {"model": "big"}),
    "tokenize": (lambda c: c.tokenize("Hi", model="m"), (72, 105), {"model": "m"}),
    "detokenize": (
        lambda c: c.detokenize((72, 105), skip_special_tokens=False, model="m"),
        "Hi",
        {"model": "m", "skip_special_tokens": False, "token_ids": [72, 105]},
    ),
    "server info": (lambda c: c.server_info(), model_pb2.ServerInfo(version="1.2.3"), {}),
    "drain": (
        lambda c: c.drain(1.5),
        admin_pb2.DrainResponse(finished=3, aborted=1),
        {"timeout": Duration(seconds=1, nanos=500_000_000)},
    ),
}


@both_forms
@pytest.mark.parametrize(("ask", "answer", "sent"), CALLS.values(), ids=CALLS)
@pytest.mark.asyncio
async def test_a_call_sends_what_it_was_given_and_returns_the_answer(
    form: Callable[..., Any],
    ask: Callable[[Any], Any],
    answer: object,
    sent: dict[str, object],
) -> None:
    async with form(play()) as (client, scripted):
        assert await asked(client, ask) == answer
    assert {name: getattr(scripted.request, name) for name in sent} == sent


@both_forms
@pytest.mark.asyncio
async def test_what_is_left_out_is_left_to_the_server(form: Callable[..., Any]) -> None:
    async with form(play()) as (client, scripted):
        await asked(client, lambda c: c.detokenize([72]))
        assert not scripted.request.HasField("skip_special_tokens")
        await asked(client, lambda c: c.drain())
        assert not scripted.request.HasField("timeout")
        await listed(client, lambda c: c.watch_server_info(), 1)
        assert not scripted.request.HasField("interval")


@both_forms
@pytest.mark.asyncio
async def test_a_stream_yields_typed_events_and_generate_joins_them(
    form: Callable[..., Any],
) -> None:
    async with form(play(*WHOLE)) as (client, _):
        events = await listed(client, lambda c: c.stream("Hi"), 99)
        answer = await asked(client, lambda c: c.generate("Hi"))
    kinds = [Started, Delta, Delta, SequenceFinished, Finished]
    assert [type(event) for event in events] == kinds
    assert (answer.text, answer.token_ids) == ("Hello", (0, 7, 9))


@both_forms
@pytest.mark.asyncio
async def test_a_watch_yields_until_it_is_left(form: Callable[..., Any]) -> None:
    async with form(play()) as (client, scripted):
        infos = await listed(client, lambda c: c.watch_server_info(0.25), 2)
        assert [info.counters.steps for info in infos] == [1, 2]
        assert scripted.request.interval.ToMilliseconds() == 250
        await asyncio.wait_for(scripted.cancelled.wait(), 10)


@both_forms
@pytest.mark.asyncio
async def test_chat_messages_can_be_tokenized(form: Callable[..., Any]) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    async with form(play()) as (client, scripted):
        await asked(client, lambda c: c.tokenize(messages=messages, add_special_tokens=False))
    assert scripted.request.input.chat.messages[0].content == "Hi"
    assert scripted.request.input.add_special_tokens is False


@both_forms
@pytest.mark.asyncio
async def test_options_of_a_generation_are_refused_where_nothing_is_generated(
    form: Callable[..., Any],
) -> None:
    async with form(play()) as (client, _):
        with pytest.raises(TypeError, match="temperature"):
            await asked(client, lambda c: c.tokenize("Hi", temperature=1.0))


@both_forms
@pytest.mark.asyncio
async def test_metadata_goes_with_every_call(form: Callable[..., Any]) -> None:
    async with form(play(*WHOLE), metadata=[("authorization", "Bearer t")]) as (client, scripted):
        for ask in (
            lambda c: c.generate("Hi"),
            lambda c: c.tokenize("Hi"),
        ):
            scripted.metadata = {}
            await asked(client, ask)
            assert scripted.metadata["authorization"] == "Bearer t"


TIMED: dict[str, Callable[[Any], Any]] = {
    "abort": lambda c: c.abort("live", timeout_s=0.05),
    "model": lambda c: c.model(timeout_s=0.05),
    "tokenize": lambda c: c.tokenize("Hi", timeout_s=0.05),
    "detokenize": lambda c: c.detokenize([72], timeout_s=0.05),
    "server_info": lambda c: c.server_info(timeout_s=0.05),
    "drain": lambda c: c.drain(call_timeout_s=0.05),
    "generate": lambda c: c.generate("Hi", timeout_s=0.05),
}


@both_forms
@pytest.mark.parametrize("ask", TIMED.values(), ids=TIMED)
@pytest.mark.asyncio
async def test_every_call_takes_a_deadline(
    form: Callable[..., Any], ask: Callable[[Any], Any]
) -> None:
    async with form(play()) as (client, scripted):
        scripted.silent = True
        with pytest.raises(DeadlineExceeded):
            await asked(client, ask)


@both_forms
@pytest.mark.parametrize("timeout_s", [math.inf, 1e10, 1e300])
@pytest.mark.asyncio
async def test_a_deadline_beyond_ten_years_is_none(
    form: Callable[..., Any], timeout_s: float
) -> None:
    async with form(play(*WHOLE)) as (client, scripted):
        answer = await asked(client, lambda c: c.generate("Hi", timeout_s=timeout_s))
        assert answer.text == "Hello"
        assert await asked(client, lambda c: c.abort("live", timeout_s=timeout_s))
        await asked(client, lambda c: c.drain(timeout_s, call_timeout_s=timeout_s))
        assert not scripted.request.HasField("timeout")


MISTIMED: dict[str, tuple[str, Callable[[Any, float], Any]]] = {
    "stream": ("timeout_s", lambda c, s: c.generate("Hi", timeout_s=s)),
    "call": ("timeout_s", lambda c, s: c.server_info(timeout_s=s)),
    "wait_ready": ("timeout_s", lambda c, s: c.wait_ready(s)),
    "drain": ("timeout_s", lambda c, s: c.drain(s)),
    "call of drain": ("call_timeout_s", lambda c, s: c.drain(call_timeout_s=s)),
    "draft budget": ("draft_budget_s", lambda c, s: c.generate("Hi", draft_budget_s=s)),
}


@both_forms
@pytest.mark.parametrize("seconds", [math.nan, -1.0, -math.inf])
@pytest.mark.parametrize(("name", "ask"), MISTIMED.values(), ids=MISTIMED)
@pytest.mark.asyncio
async def test_a_time_that_cannot_be_meant_is_an_error_with_its_name(
    form: Callable[..., Any], name: str, ask: Callable[[Any, float], Any], seconds: float
) -> None:
    async with form(play(*WHOLE)) as (client, scripted):
        with pytest.raises(ValueError, match=f"^{name} is "):
            await asked(client, lambda c: ask(c, seconds))
        assert scripted.arrivals_s == []


@both_forms
@pytest.mark.parametrize("seconds", [math.inf, math.nan, -1.0, 1e12])
@pytest.mark.asyncio
async def test_an_interval_that_no_message_holds_is_an_error_with_its_name(
    form: Callable[..., Any], seconds: float
) -> None:
    async with form(play()) as (client, _):
        with pytest.raises(ValueError, match="interval_s is between 0 and 315576000000 s"):
            client.watch_server_info(seconds)


@both_forms
@pytest.mark.asyncio
async def test_a_server_without_drain_is_told_apart_from_its_admin_address(
    form: Callable[..., Any],
) -> None:
    async with form(play()) as (client, scripted):
        scripted.refusals = [Refusal(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")]
        with pytest.raises(Unsupported, match="Method not found!.*admin address"):
            await asked(client, lambda c: c.drain())


@both_forms
@pytest.mark.asyncio
async def test_the_deadline_of_a_watch_ends_it(form: Callable[..., Any]) -> None:
    async with form(play()) as (client, _):
        with pytest.raises(DeadlineExceeded):
            await listed(client, lambda c: c.watch_server_info(timeout_s=0.05), 3)


@both_forms
@pytest.mark.asyncio
async def test_closing_the_client_ends_its_streams_as_cancelled(form: Callable[..., Any]) -> None:
    async with form(play_and_hang(*WHOLE[:1])) as (client, scripted):
        stream = client.stream("Hi")
        if isinstance(client, sync.Client):
            await asyncio.to_thread(next, stream)
            await asyncio.to_thread(client.channel.close)
            with pytest.raises(CallCancelled):
                await asyncio.to_thread(next, stream)
        else:
            await anext(stream)
            await client.channel.close()
            with pytest.raises(CallCancelled):
                await anext(stream)
        await asyncio.wait_for(scripted.cancelled.wait(), 10)


@pytest.mark.asyncio
async def test_an_address_can_be_a_local_socket(tmp_path: Path) -> None:
    async with listening(Scripted(play()), f"unix:{tmp_path}/specd.sock") as address:
        async with Client(address) as client:
            assert (await client.server_info()).version == "1.2.3"
        with sync.Client(address) as blocking:
            assert (await asyncio.to_thread(blocking.server_info)).version == "1.2.3"


@pytest.mark.asyncio
async def test_a_client_is_open_once_at_a_time() -> None:
    client = Client("127.0.0.1:1")
    blocking = sync.Client("127.0.0.1:1")
    for closed in (client, blocking):
        with pytest.raises(RuntimeError, match="with"):
            closed.stream("Hi")
    async with client:
        with pytest.raises(RuntimeError, match="already"):
            await client.__aenter__()
    with blocking, pytest.raises(RuntimeError, match="already"):
        blocking.__enter__()
    async with client:
        assert client.channel
