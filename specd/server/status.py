"""Errors -> gRPC statuses. The only place that maps one to the other.

Knows every class of `specd.errors` and the details of google.rpc; knows nothing of how calls run.

Invariant: each class of error has one row in TABLE, and an error without a row is INTERNAL with an
error id, its own text only in the log.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, NoReturn, TypeVar, cast

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import status_pb2
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, ResourceInfo, RetryInfo

from specd import errors
from specd.server.decoding import Refused

log = logging.getLogger(__name__)

DOMAIN = "specd"
RETRY_S = 1.0
# A status travels in one block of headers, of which peers take 8 KiB, and it holds up to four such
# texts; non-ASCII triples in one of them.
MAX_TEXT_BYTES = 512

Code = grpc.StatusCode
Trailers = tuple[tuple[str, str | bytes], ...]
Handler = TypeVar("Handler", bound=Callable[..., Any])


def _none(_: errors.SpecdError) -> list[Message]:
    return []


def _no_metadata(_: errors.SpecdError) -> dict[str, str]:
    return {}


def _never(_: errors.SpecdError) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Row:
    """How one class of error looks on the wire.

    details: messages besides ErrorInfo. metadata: of ErrorInfo. retry_after_s: when the same call
    may succeed, None where waiting does not help.
    """

    code: Code
    reason: str
    details: Callable[[Any], list[Message]] = _none
    metadata: Callable[[Any], dict[str, str]] = _no_metadata
    retry_after_s: Callable[[Any], float | None] = _never


@dataclass(frozen=True, slots=True)
class WireStatus:
    """A status as it is sent: code, message and trailing metadata."""

    code: Code
    message: str
    trailers: Trailers


def _violation(error: errors.InvalidField) -> list[Message]:
    violation = BadRequest.FieldViolation(field=_cut(error.field), description=_cut(error.problem))
    return [BadRequest(field_violations=[violation])]


def _unsupported(error: errors.UnsupportedField) -> list[Message]:
    violation = BadRequest.FieldViolation(field=_cut(error.field), description="not supported")
    return [BadRequest(field_violations=[violation])]


def _resource(error: errors.UnknownName) -> list[Message]:
    return [ResourceInfo(resource_type=error.kind, resource_name=_cut(error.name))]


def _request(error: errors.DuplicateRequest) -> list[Message]:
    return [ResourceInfo(resource_type="request", resource_name=_cut(error.request_id))]


def _prompt_length(error: errors.ContextLengthExceeded) -> dict[str, str]:
    return {"limit": str(error.limit), "prompt_tokens": str(error.num_prompt_tokens)}


def _limit(error: errors.QueueFull | errors.TooMuchText | errors.TooManyWatchers) -> dict[str, str]:
    return {"limit": str(error.limit)}


def _queue_retry(error: errors.QueueFull) -> float:
    return error.retry_after_s


def _times(error: errors.DeadlineTooShort) -> dict[str, str]:
    return {"time_left_s": f"{error.time_left_s:.3f}", "needed_s": f"{error.needed_s:.3f}"}


def _soon(_: errors.SpecdError) -> float:
    return RETRY_S


TABLE: Mapping[type[errors.SpecdError], Row] = {
    errors.InvalidField: Row(Code.INVALID_ARGUMENT, "INVALID_FIELD", _violation),
    errors.ContextLengthExceeded: Row(
        Code.INVALID_ARGUMENT, "CONTEXT_LENGTH_EXCEEDED", _violation, _prompt_length
    ),
    errors.UnsupportedField: Row(Code.UNIMPLEMENTED, "UNSUPPORTED_FIELD", _unsupported),
    errors.UnknownName: Row(Code.NOT_FOUND, "UNKNOWN_NAME", _resource),
    errors.DuplicateRequest: Row(Code.ALREADY_EXISTS, "DUPLICATE_REQUEST", _request),
    errors.QueueFull: Row(Code.RESOURCE_EXHAUSTED, "QUEUE_FULL", _none, _limit, _queue_retry),
    errors.DeadlineTooShort: Row(Code.DEADLINE_EXCEEDED, "DEADLINE_TOO_SHORT", metadata=_times),
    errors.WrongState: Row(Code.FAILED_PRECONDITION, "WRONG_STATE"),
    errors.TooMuchText: Row(Code.RESOURCE_EXHAUSTED, "TOO_MUCH_TEXT", _none, _limit, _soon),
    errors.TooManyWatchers: Row(Code.RESOURCE_EXHAUSTED, "TOO_MANY_WATCHERS", _none, _limit),
    errors.TooManyStructures: Row(
        Code.RESOURCE_EXHAUSTED, "TOO_MANY_STRUCTURES", retry_after_s=_soon
    ),
    errors.NotServing: Row(Code.UNAVAILABLE, "NOT_SERVING", retry_after_s=_soon),
    # These three not RESOURCE_EXHAUSTED, which clients retry: it would end the same way.
    errors.OutOfPages: Row(Code.FAILED_PRECONDITION, "OUT_OF_PAGES"),
    errors.AnswerTooLarge: Row(Code.FAILED_PRECONDITION, "ANSWER_TOO_LARGE"),
    errors.StructureFailed: Row(Code.FAILED_PRECONDITION, "STRUCTURE_FAILED"),
    errors.NonFiniteLogits: Row(Code.INTERNAL, "NON_FINITE_LOGITS"),
    errors.StepFailed: Row(Code.INTERNAL, "STEP_FAILED"),
}


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], error: BaseException) -> NoReturn:
    """Ends the call with the status of `error`; what it does not know is logged under an id."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    status = status_of(error)
    try:
        await context.abort(status.code, status.message, status.trailers)
    except grpc.aio.InternalError as gone:
        raise asyncio.CancelledError("the reader has gone") from gone


def status_of(error: BaseException) -> WireStatus:
    """Returns the status of `error`. An exception group of one counts as its member."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    row = next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), None)
    if row is None:
        return _unexpected(error)
    info = ErrorInfo(reason=row.reason, domain=DOMAIN, metadata=row.metadata(error))
    retry_after_s = row.retry_after_s(error)
    return _status(row.code, _cut(str(error)), [info, *row.details(error)], retry_after_s)


def _unexpected(error: BaseException) -> WireStatus:
    error_id = uuid.uuid4().hex
    log.error("internal error %s", error_id, exc_info=error)
    info = ErrorInfo(reason="INTERNAL", domain=DOMAIN, metadata={"error_id": error_id})
    message = f"internal error {error_id}; the daemon's log has the cause"
    return _status(Code.INTERNAL, message, [info], None)


def _status(
    code: Code, message: str, details: list[Message], retry_after_s: float | None
) -> WireStatus:
    trailers: Trailers = ()
    if retry_after_s is not None:
        retry_ms = round(retry_after_s * 1000)
        delay = Duration(seconds=retry_ms // 1000, nanos=retry_ms % 1000 * 10**6)
        details = [*details, RetryInfo(retry_delay=delay)]
        # gRPC's own retry policies obey this one; RetryInfo is for people and libraries.
        trailers = (("grpc-retry-pushback-ms", str(retry_ms)),)
    status = status_pb2.Status(code=code.value[0], message=message)
    status.details.extend(map(_packed, details))
    return WireStatus(
        code, message, (*trailers, ("grpc-status-details-bin", status.SerializeToString()))
    )


def _packed(message: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed


def _cut(text: str) -> str:
    """Returns at most MAX_TEXT_BYTES of `text`, whole characters only."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= MAX_TEXT_BYTES:
        return encoded.decode()
    return encoded[: MAX_TEXT_BYTES - 3].decode(errors="ignore") + "..."


def with_status(handler: Handler) -> Handler:
    """Makes a handler `(self, request, context)` end with the status of what it raises."""

    @wraps(handler)
    async def guarded(self: Any, request: Any, context: Any) -> Any:
        try:
            if isinstance(request, Refused):
                raise request.error
            return await handler(self, request, context)
        except grpc.aio.InternalError as error:
            # The reader has gone while a write waited. Everywhere else grpc tells of that by a
            # cancellation, and it takes one as the answer; a status would reach nobody.
            raise asyncio.CancelledError("the reader has gone") from error
        except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit):
            raise
        # The panic of a library in Rust is no Exception; let through, it would leave its caller
        # without any answer.
        except BaseException as error:
            await abort_with(context, error)

    return cast(Handler, guarded)
