"""The server's errors as its clients see them: the client knows each code and each reason."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from specd_client import CallFailed, Client, FieldViolation, Reason
from specd_client.errors import ERRORS

from specd import errors
from specd.server.status import TABLE, abort_with
from tests.support.scripted_server import Context, Scripted, listening

SENT: list[errors.SpecdError] = [
    errors.InvalidField("stop", "bad"),
    errors.ContextLengthExceeded(9, 8),
    errors.UnsupportedField("tenant"),
    errors.UnknownName("model", "m", []),
    errors.DuplicateRequest("r"),
    errors.QueueFull(4, 0.25),
    errors.TooMuchText(9),
    errors.TooManyStructures(),
    errors.TooManyWatchers(9),
    errors.DeadlineTooShort(0.1, 0.2),
    errors.WrongState("no"),
    errors.NotServing("draining"),
    errors.OutOfPages(9, 8),
    errors.AnswerTooLarge(9),
    errors.StructureFailed("no"),
    errors.NonFiniteLogits(),
    errors.StepFailed(),
]


async def failure_of(error: Exception) -> CallFailed:
    """What a client gets when the server raises this."""

    async def script(_: object, context: Context) -> AsyncIterator[Any]:
        await abort_with(context, error)
        yield None

    async with listening(Scripted(script)) as address, Client(address, retries=False) as client:
        with pytest.raises(CallFailed) as failed:
            await client.generate("Hi")
    return failed.value


def test_every_reason_of_the_server_has_a_name_and_every_name_a_reason() -> None:
    assert {row.reason for row in TABLE.values()} | {"INTERNAL"} == set(Reason)
    assert {type(error) for error in SENT} == set(TABLE)


@pytest.mark.parametrize("error", SENT, ids=[type(error).__name__ for error in SENT])
@pytest.mark.asyncio
async def test_an_error_arrives_with_its_class_reason_and_words(error: errors.SpecdError) -> None:
    row = TABLE[type(error)]
    failed = await failure_of(error)
    assert (type(failed), failed.code) == (ERRORS[row.code], row.code)
    assert (failed.reason, failed.message) == (row.reason, str(error))
    assert failed.retry_after_s == row.retry_after_s(error)


@pytest.mark.asyncio
async def test_an_error_arrives_with_its_details() -> None:
    bad = await failure_of(errors.InvalidField("stop", "bad"))
    assert bad.field_violations == (FieldViolation("stop", "bad"),)
    long = await failure_of(errors.ContextLengthExceeded(9, 8))
    assert long.metadata == {"prompt_tokens": "9", "limit": "8"}
    unknown = await failure_of(errors.UnknownName("model", "m", []))
    assert unknown.resource == ("model", "m")


@pytest.mark.asyncio
async def test_an_error_that_nobody_foresaw_arrives_with_an_id() -> None:
    failed = await failure_of(ZeroDivisionError("secret"))
    assert failed.reason == Reason.INTERNAL
    assert failed.metadata["error_id"] in failed.message
    assert "secret" not in str(failed)
