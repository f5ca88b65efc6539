"""Failed calls in both forms: a class and a reason for each, with all that the server told."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from specd_client import (
    CallFailed,
    Client,
    Delta,
    FieldViolation,
    InternalError,
    InvalidRequest,
    MessageTooLarge,
    NotReady,
    Overloaded,
    ProtocolError,
    Reason,
    Started,
    UnknownName,
    Unsupported,
    details,
    errors,
    sync,
)

from tests.support.scripted_server import (
    HEL,
    STARTED,
    WHOLE,
    Refusal,
    Script,
    asked,
    both_forms,
    play,
    play_and_fail,
    serving,
)

Code = grpc.StatusCode


async def failure_of(script: Script) -> CallFailed:
    async with serving(script, retries=False) as (client, _):
        with pytest.raises(CallFailed) as failed:
            await client.generate("Hi")
    return failed.value


KINDS = [
    (Code.INVALID_ARGUMENT, InvalidRequest),
    (Code.NOT_FOUND, UnknownName),
    (Code.UNIMPLEMENTED, Unsupported),
    (Code.RESOURCE_EXHAUSTED, Overloaded),
    (Code.UNAVAILABLE, NotReady),
    (Code.INTERNAL, InternalError),
]


@both_forms
@pytest.mark.parametrize(("code", "kind"), KINDS)
@pytest.mark.asyncio
async def test_a_refusal_is_typed_by_its_status(
    form: Callable[..., Any], code: Code, kind: type[CallFailed]
) -> None:
    async with form(play(*WHOLE), retries=False) as (client, scripted):
        for ask in (lambda c: c.generate("Hi"), lambda c: c.tokenize("Hi")):
            scripted.refusals = [Refusal(code, "so it is", "SO")]
            with pytest.raises(CallFailed) as failed:
                await asked(client, ask)
            error = failed.value
            assert (type(error), error.code) == (kind, code)
            assert (error.reason, error.message) == ("SO", "so it is")


def test_every_status_code_has_an_error() -> None:
    assert set(errors.ERRORS) == set(Code) - {Code.OK}


FULL = Refusal(
    Code.RESOURCE_EXHAUSTED,
    "the queue is full",
    "QUEUE_FULL",
    metadata={"limit": "4"},
    violations={"stop": "bad"},
    resource=("model", "m"),
    pushback_ms=250,
)


@pytest.mark.asyncio
async def test_an_error_holds_all_that_the_server_told() -> None:
    error = await failure_of(play_and_fail(FULL))
    assert error.metadata == {"limit": "4"}
    assert error.field_violations == (FieldViolation("stop", "bad"),)
    assert error.retry_after_s == 0.25
    assert error.resource == ("model", "m")


@pytest.mark.asyncio
async def test_a_reason_can_be_compared_and_matched() -> None:
    error = await failure_of(play_and_fail(FULL))
    assert error.reason == Reason.QUEUE_FULL
    match error:
        case Overloaded(reason=Reason.QUEUE_FULL):
            pass
        case _:
            pytest.fail("no match")


@pytest.mark.asyncio
async def test_an_error_says_its_message_and_reason() -> None:
    error = await failure_of(play_and_fail(FULL))
    assert str(error) == "the queue is full [QUEUE_FULL]"
    shown = "Overloaded(code=RESOURCE_EXHAUSTED, reason='QUEUE_FULL', message='the queue is full')"
    assert repr(error) == shown
    bare = await failure_of(play_and_fail(Refusal(Code.INTERNAL, "broken")))
    assert str(bare) == "broken [INTERNAL]"


@pytest.mark.asyncio
async def test_an_error_survives_pickling() -> None:
    error = await failure_of(play_and_fail(FULL))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), vars(again)) == (Overloaded, vars(error))
    assert (str(again), repr(again)) == (str(error), repr(error))
    assert str(pickle.loads(pickle.dumps(ProtocolError("no finished")))) == "no finished"


@pytest.mark.asyncio
async def test_a_failure_after_some_output_ends_the_stream() -> None:
    broken = Refusal(Code.INTERNAL, "the step failed", "STEP_FAILED")
    async with serving(play_and_fail(broken, STARTED, HEL)) as (client, _):
        seen: set[type] = set()
        with pytest.raises(InternalError):
            async for event in client.stream("Hi"):
                seen |= {type(event)}
    assert seen == {Started, Delta}


@pytest.mark.asyncio
async def test_a_failure_after_finished_is_not_taken_for_success() -> None:
    broken = Refusal(Code.INTERNAL, "the step failed", "STEP_FAILED")
    assert (await failure_of(play_and_fail(broken, *WHOLE))).reason == "STEP_FAILED"


@both_forms
@pytest.mark.asyncio
async def test_a_message_above_the_limit_is_no_overload(form: Callable[..., Any]) -> None:
    async with form(play(*WHOLE)) as (client, scripted):
        with pytest.raises(MessageTooLarge, match="larger than max"):
            await asked(client, lambda c: c.generate("x" * (5 * 2**20)))
    assert scripted.arrivals_s == []


@pytest.mark.asyncio
async def test_an_address_where_nobody_listens_is_not_ready() -> None:
    async with Client("127.0.0.1:1", retries=False) as client:
        with pytest.raises(NotReady):
            await client.server_info()
    with sync.Client("127.0.0.1:1", retries=False) as blocking, pytest.raises(NotReady):
        blocking.server_info()


@pytest.mark.parametrize("serialized", [b"\xff", b"", b"\x1a\x02\xff\xff"])
def test_details_that_cannot_be_read_are_empty(serialized: bytes) -> None:
    assert details.details_from(serialized) == details.Details()
