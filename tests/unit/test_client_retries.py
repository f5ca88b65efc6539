"""What is tried again and what never is: the shipped service config in gRPC's own hands."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from specd_client import CallFailed, Delta, NotReady, Overloaded, Reason
from specd_client.connection import SERVICE_CONFIG
from specd_client.v1 import admin_pb2, generation_pb2, model_pb2

from tests.support.scripted_server import (
    NOT_SERVED,
    QUEUE_FULL,
    STARTED,
    WHOLE,
    Refusal,
    asked,
    both_forms,
    listed,
    play,
    play_and_fail,
    serving,
)

ATTEMPTS = 5
# A drain that is repeated could meet the next daemon at this address, and gives live generations
# more time than was asked for. The other two answer differently when they are repeated.
NEVER = {"Drain", "RegisterDrafter", "DeregisterDrafter"}
REFUSALS = [QUEUE_FULL, NOT_SERVED]
refused = pytest.mark.parametrize("refusal", REFUSALS, ids=[one.reason for one in REFUSALS])


@both_forms
@refused
@pytest.mark.asyncio
async def test_a_stream_that_is_refused_twice_and_then_accepted_is_whole(
    form: Callable[..., Any], refusal: Refusal
) -> None:
    async with form(play(*WHOLE)) as (client, scripted):
        scripted.refusals = [refusal, refusal]
        assert (await asked(client, lambda c: c.generate("Hi"))).text == "Hello"
    assert scripted.metadata["grpc-previous-rpc-attempts"] == "2"
    assert len(scripted.arrivals_s) == 3


RETRIED: dict[str, Callable[[Any], Any]] = {
    "abort": lambda c: c.abort("live"),
    "model": lambda c: c.model(),
    "tokenize": lambda c: c.tokenize("Hi"),
    "detokenize": lambda c: c.detokenize([72]),
    "server_info": lambda c: c.server_info(),
}


@both_forms
@pytest.mark.parametrize("ask", RETRIED.values(), ids=RETRIED)
@pytest.mark.asyncio
async def test_a_call_that_changes_nothing_twice_is_tried_again(
    form: Callable[..., Any], ask: Callable[[Any], Any]
) -> None:
    async with form(play()) as (client, scripted):
        scripted.refusals = [NOT_SERVED]
        assert await asked(client, ask)
    assert len(scripted.arrivals_s) == 2


@both_forms
@pytest.mark.asyncio
async def test_a_watch_that_is_refused_is_tried_again(form: Callable[..., Any]) -> None:
    async with form(play()) as (client, scripted):
        scripted.refusals = [NOT_SERVED]
        assert len(await listed(client, lambda c: c.watch_server_info(), 2)) == 2


@both_forms
@pytest.mark.asyncio
async def test_a_drain_is_never_repeated(form: Callable[..., Any]) -> None:
    async with form(play()) as (client, scripted):
        scripted.refusals = [NOT_SERVED]
        with pytest.raises(NotReady):
            await asked(client, lambda c: c.drain())
    assert len(scripted.arrivals_s) == 1


@both_forms
@pytest.mark.asyncio
async def test_a_stream_that_has_yielded_anything_is_never_repeated(
    form: Callable[..., Any],
) -> None:
    async with form(play_and_fail(NOT_SERVED, STARTED)) as (client, scripted):
        with pytest.raises(NotReady):
            await asked(client, lambda c: c.generate("Hi"))
    assert len(scripted.arrivals_s) == 1


@both_forms
@pytest.mark.asyncio
async def test_exhausted_retries_give_the_last_error(form: Callable[..., Any]) -> None:
    async with form(play(*WHOLE)) as (client, scripted):
        scripted.refusals = [NOT_SERVED] * (ATTEMPTS - 1) + [QUEUE_FULL] * 2
        with pytest.raises(Overloaded) as failed:
            await asked(client, lambda c: c.generate("Hi"))
    assert (failed.value.reason, failed.value.retry_after_s) == (Reason.QUEUE_FULL, 0.001)
    assert len(scripted.arrivals_s) == ATTEMPTS


@both_forms
@pytest.mark.asyncio
async def test_retries_can_be_switched_off(form: Callable[..., Any]) -> None:
    async with form(play(*WHOLE), retries=False) as (client, scripted):
        scripted.refusals = [QUEUE_FULL]
        with pytest.raises(Overloaded):
            await asked(client, lambda c: c.generate("Hi"))
    assert len(scripted.arrivals_s) == 1


@pytest.mark.asyncio
async def test_the_next_attempt_comes_when_the_server_wants_it() -> None:
    # Without it the second attempt comes after 0.1 s, give or take 20%.
    later = Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, reason="QUEUE_FULL", pushback_ms=400)
    async with serving(play(*WHOLE)) as (client, scripted):
        scripted.refusals = [later]
        await client.generate("Hi")
    first_s, second_s = scripted.arrivals_s
    assert second_s - first_s >= 0.4


@pytest.mark.asyncio
async def test_the_deadline_holds_for_all_attempts_together() -> None:
    later = Refusal(grpc.StatusCode.UNAVAILABLE, reason="NOT_SERVING", pushback_ms=60_000)
    async with serving(play(*WHOLE)) as (client, scripted):
        scripted.refusals = [later]
        with pytest.raises(CallFailed) as failed:
            await client.generate("Hi", timeout_s=0.2)
    assert failed.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(scripted.arrivals_s) == 1


@pytest.mark.parametrize(
    "code",
    [
        code
        for code in grpc.StatusCode
        if code.name not in {"OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED"}
    ],
)
@pytest.mark.asyncio
async def test_no_other_status_is_tried_again(code: grpc.StatusCode) -> None:
    async with serving(play(*WHOLE)) as (client, scripted):
        scripted.refusals = [Refusal(code)]
        with pytest.raises(CallFailed):
            await client.generate("Hi")
    assert len(scripted.arrivals_s) == 1


@pytest.mark.asyncio
async def test_a_service_config_of_the_caller_s_own_wins() -> None:
    own = [("grpc.service_config", "{}")]
    async with serving(play(*WHOLE), channel_options=own) as (client, scripted):
        scripted.refusals = [QUEUE_FULL]
        with pytest.raises(Overloaded):
            await client.generate("Hi")
    assert len(scripted.arrivals_s) == 1


@pytest.mark.asyncio
async def test_a_prompt_above_the_retry_buffer_is_sent_once() -> None:
    async with serving(play(*WHOLE)) as (client, scripted):
        scripted.refusals = [QUEUE_FULL]
        with pytest.raises(Overloaded):
            await client.generate("x" * 300_000)
    assert len(scripted.arrivals_s) == 1
    roomy = [("grpc.per_rpc_retry_buffer_size", 2**20)]
    async with serving(play(*WHOLE), channel_options=roomy) as (client, scripted):
        scripted.refusals = [QUEUE_FULL]
        async for event in client.stream("x" * 300_000):
            if isinstance(event, Delta):
                break
    assert len(scripted.arrivals_s) == 2


def test_of_every_method_it_is_decided_whether_it_is_tried_again() -> None:
    protos = (generation_pb2, model_pb2, admin_pb2)
    methods = {
        (service.full_name, method.name)
        for proto in protos
        for service in proto.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    named = [
        (name["service"], name["method"])
        for config in json.loads(SERVICE_CONFIG)["methodConfig"]
        for name in config["name"]
    ]
    assert len(named) == len(set(named))
    assert methods - set(named) == {("specd.v1.AdminService", name) for name in NEVER}
    assert set(named) <= methods
