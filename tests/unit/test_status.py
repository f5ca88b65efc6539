"""What each error looks like on the wire."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, TypeVar

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import status_pb2
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, ResourceInfo, RetryInfo

from specd import errors
from specd.server.status import TABLE, WireStatus, abort_with, status_of, with_status

Code = grpc.StatusCode
T = TypeVar("T", bound=Message)


def trailer(status: WireStatus, key: str) -> str | bytes | None:
    return dict(status.trailers).get(key)


def rich(status: WireStatus) -> status_pb2.Status:
    serialized = trailer(status, "grpc-status-details-bin")
    assert isinstance(serialized, bytes)
    return status_pb2.Status.FromString(serialized)


def detail(status: WireStatus, kind: type[T]) -> T:
    found = kind()
    assert any(packed.Unpack(found) for packed in rich(status).details), kind
    return found


def families() -> Iterator[type[errors.SpecdError]]:
    for family in (errors.RequestRefused, errors.RequestFailed):
        waiting = list(family.__subclasses__())
        while waiting:
            kind = waiting.pop()
            waiting += kind.__subclasses__()
            yield kind


def test_every_error_of_a_request_has_a_row_and_a_reason_of_its_own() -> None:
    assert set(TABLE) == set(families())
    assert len({row.reason for row in TABLE.values()}) == len(TABLE)


CASES: list[tuple[Exception, grpc.StatusCode, str]] = [
    (errors.InvalidField("stop", "bad"), Code.INVALID_ARGUMENT, "INVALID_FIELD"),
    (errors.ContextLengthExceeded(9, 8), Code.INVALID_ARGUMENT, "CONTEXT_LENGTH_EXCEEDED"),
    (errors.UnsupportedField("tenant"), Code.UNIMPLEMENTED, "UNSUPPORTED_FIELD"),
    (errors.UnknownName("model", "m", []), Code.NOT_FOUND, "UNKNOWN_NAME"),
    (errors.DuplicateRequest("r"), Code.ALREADY_EXISTS, "DUPLICATE_REQUEST"),
    (errors.QueueFull(4, 0.25), Code.RESOURCE_EXHAUSTED, "QUEUE_FULL"),
    (errors.TooMuchText(9), Code.RESOURCE_EXHAUSTED, "TOO_MUCH_TEXT"),
    (errors.TooManyWatchers(9), Code.RESOURCE_EXHAUSTED, "TOO_MANY_WATCHERS"),
    (errors.DeadlineTooShort(0.1, 2.0), Code.DEADLINE_EXCEEDED, "DEADLINE_TOO_SHORT"),
    (errors.WrongState("no"), Code.FAILED_PRECONDITION, "WRONG_STATE"),
    (errors.NotServing("draining"), Code.UNAVAILABLE, "NOT_SERVING"),
    (errors.OutOfPages(9, 8), Code.FAILED_PRECONDITION, "OUT_OF_PAGES"),
    (errors.AnswerTooLarge(9), Code.FAILED_PRECONDITION, "ANSWER_TOO_LARGE"),
    (errors.NonFiniteLogits(), Code.INTERNAL, "NON_FINITE_LOGITS"),
    (errors.StepFailed(), Code.INTERNAL, "STEP_FAILED"),
]


@pytest.mark.parametrize(("error", "code", "reason"), CASES)
def test_an_error_has_its_code_its_reason_and_its_own_words(
    error: Exception, code: grpc.StatusCode, reason: str
) -> None:
    status = status_of(error)
    info = detail(status, ErrorInfo)
    assert (status.code, info.reason, info.domain) == (code, reason, "specd")
    assert status.message == rich(status).message == str(error)
    assert rich(status).code == code.value[0]


def test_a_bad_field_is_named_as_a_violation() -> None:
    violation = detail(status_of(errors.InvalidField("stop", "bad")), BadRequest).field_violations
    assert [(item.field, item.description) for item in violation] == [("stop", "bad")]


def test_a_long_prompt_is_told_its_length_and_the_limit() -> None:
    info = detail(status_of(errors.ContextLengthExceeded(9, 8)), ErrorInfo)
    assert dict(info.metadata) == {"prompt_tokens": "9", "limit": "8"}


@pytest.mark.parametrize(
    ("error", "kind", "name"),
    [
        (errors.UnknownName("drafter", "oracle", ["ngram"]), "drafter", "oracle"),
        (errors.DuplicateRequest("r-1"), "request", "r-1"),
    ],
)
def test_what_is_missing_or_taken_is_named(error: Exception, kind: str, name: str) -> None:
    info = detail(status_of(error), ResourceInfo)
    assert (info.resource_type, info.resource_name) == (kind, name)


@pytest.mark.parametrize(
    ("error", "retry_ms"),
    [(errors.QueueFull(4, 1.25), 1250), (errors.NotServing("draining"), 1000)],
)
def test_a_passing_refusal_tells_when_to_retry(error: Exception, retry_ms: int) -> None:
    status = status_of(error)
    assert trailer(status, "grpc-retry-pushback-ms") == str(retry_ms)
    assert detail(status, RetryInfo).retry_delay.ToMilliseconds() == retry_ms


def test_a_lasting_refusal_asks_for_no_retry() -> None:
    assert trailer(status_of(errors.StepFailed()), "grpc-retry-pushback-ms") is None


@pytest.mark.parametrize("error", [ValueError("secret /etc/x"), errors.PullFailed("secret /etc/x")])
def test_an_unexpected_error_keeps_its_text_for_the_log(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        status = status_of(error)
    error_id = detail(status, ErrorInfo).metadata["error_id"]
    assert status.code is Code.INTERNAL
    assert error_id in status.message
    assert "secret" not in repr(status)
    assert error_id in caplog.text
    assert "secret /etc/x" in caplog.text


def test_unexpected_errors_have_ids_of_their_own() -> None:
    assert status_of(ValueError()).message != status_of(ValueError()).message


def test_a_task_group_does_not_hide_the_error() -> None:
    group = ExceptionGroup("tasks", [ExceptionGroup("inner", [errors.StepFailed()])])
    assert detail(status_of(group), ErrorInfo).reason == "STEP_FAILED"


async def refusal(error: Exception) -> grpc.StatusCode:
    """Returns the code that arrives at a client which takes the usual 8 KiB of headers."""

    async def refuse(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        try:
            await abort_with(context, error)
        except Exception as aborted:  # as an interceptor around the handler does
            await abort_with(context, aborted)

    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "M": grpc.unary_unary_rpc_method_handler(refuse)
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("S", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    limits = [("grpc.max_metadata_size", 8192), ("grpc.absolute_max_metadata_size", 8192)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", limits) as channel:
        call: Any = channel.unary_unary("/S/M")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"")
    await server.stop(None)
    assert "grpc-status-details-bin" in dict(refused.value.trailing_metadata())
    return refused.value.code()


@pytest.mark.asyncio
@pytest.mark.parametrize("text", ["x" * 100_000, "\N{SNOWMAN}" * 100_000])
async def test_an_endless_text_does_not_break_the_status(text: str) -> None:
    for error, code in (
        (errors.UnknownName("model", text, [text]), Code.NOT_FOUND),
        (errors.InvalidField(text, text), Code.INVALID_ARGUMENT),
    ):
        assert await refusal(error) is code


@pytest.mark.asyncio
async def test_a_call_that_is_aborted_already_keeps_its_status(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await refusal(errors.DuplicateRequest("r")) is Code.ALREADY_EXISTS
    assert caplog.text == ""


class Panic(BaseException):
    """What a library in another language raises."""


@pytest.mark.parametrize("kind", [Panic, RuntimeError])
@pytest.mark.asyncio
async def test_whatever_a_handler_raises_its_caller_gets_an_answer(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    class Servicer:
        @with_status
        async def call(self, request: bytes, context: Any) -> bytes:
            raise kind("oh")

    server = grpc.aio.server()
    handlers = {"Call": grpc.unary_unary_rpc_method_handler(Servicer().call)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.S", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary("/t.S/Call")(b"", timeout=10)
    finally:
        await server.stop(None)
    assert raised.value.code() is Code.INTERNAL
    assert "oh" not in str(raised.value.details())
    assert "oh" in caplog.text
