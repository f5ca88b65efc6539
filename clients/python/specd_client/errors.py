"""Every way in which a call can fail, named after the situation.

    SpecdClientError
    |-- CredentialsUnusable   files for TLS that cannot be read or used
    |-- ProtocolError         the server broke the rules of a stream
    `-- CallFailed            the call ended with a status; the subclass follows from its code
        |-- InvalidRequest        INVALID_ARGUMENT, OUT_OF_RANGE
        |-- UnknownName           NOT_FOUND
        |-- DuplicateRequest      ALREADY_EXISTS
        |-- Unsupported           UNIMPLEMENTED
        |-- Overloaded            RESOURCE_EXHAUSTED
        |-- MessageTooLarge       RESOURCE_EXHAUSTED, told by gRPC itself
        |-- NotReady              UNAVAILABLE: starting, draining, or nobody listens
        |-- WrongState            FAILED_PRECONDITION
        |-- DeadlineExceeded      DEADLINE_EXCEEDED
        |-- CallCancelled         CANCELLED, ABORTED
        |-- NotAuthenticated      UNAUTHENTICATED
        |-- NotPermitted          PERMISSION_DENIED
        `-- InternalError         INTERNAL, UNKNOWN, DATA_LOSS

Invariant: ERRORS has a class for every status code but OK.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import grpc

from specd_client.details import Details, FieldViolation, details_from

__all__ = [
    "ERRORS",
    "CallCancelled",
    "CallFailed",
    "CredentialsUnusable",
    "DeadlineExceeded",
    "DuplicateRequest",
    "FieldViolation",
    "InternalError",
    "InvalidRequest",
    "MessageTooLarge",
    "NotAuthenticated",
    "NotPermitted",
    "NotReady",
    "Overloaded",
    "ProtocolError",
    "Reason",
    "SpecdClientError",
    "UnknownName",
    "Unsupported",
    "WrongState",
    "error_from",
    "failure",
]


# How gRPC itself says that a message exceeds a limit, the server's or this client's.
TOO_LARGE = "message larger than max"


class Reason(StrEnum):
    """What `CallFailed.reason` says of errors that this version of specd sends."""

    INVALID_FIELD = "INVALID_FIELD"
    CONTEXT_LENGTH_EXCEEDED = "CONTEXT_LENGTH_EXCEEDED"
    UNSUPPORTED_FIELD = "UNSUPPORTED_FIELD"
    UNKNOWN_NAME = "UNKNOWN_NAME"
    DUPLICATE_REQUEST = "DUPLICATE_REQUEST"
    QUEUE_FULL = "QUEUE_FULL"
    TOO_MUCH_TEXT = "TOO_MUCH_TEXT"
    TOO_MANY_WATCHERS = "TOO_MANY_WATCHERS"
    DEADLINE_TOO_SHORT = "DEADLINE_TOO_SHORT"
    WRONG_STATE = "WRONG_STATE"
    NOT_SERVING = "NOT_SERVING"
    OUT_OF_PAGES = "OUT_OF_PAGES"
    ANSWER_TOO_LARGE = "ANSWER_TOO_LARGE"
    TOO_MANY_STRUCTURES = "TOO_MANY_STRUCTURES"
    STRUCTURE_FAILED = "STRUCTURE_FAILED"
    NON_FINITE_LOGITS = "NON_FINITE_LOGITS"
    STEP_FAILED = "STEP_FAILED"
    INTERNAL = "INTERNAL"


class SpecdClientError(Exception):
    """Root of everything that this package raises on purpose."""


class ProtocolError(SpecdClientError):
    """The server broke a rule of the protocol, for instance ended a stream without `finished`."""


class CredentialsUnusable(SpecdClientError):
    """A file for TLS cannot be read or used; the message names it."""


class CallFailed(SpecdClientError):
    """A call that ended with a status.

    code: of the status. reason: name of the situation, a `Reason` or one of a newer server; empty
    where none was sent. metadata: further facts by name. field_violations: the fields that were
    refused. retry_after_s: when the same call may succeed. resource: (kind, name) of what is
    missing or taken.
    """

    def __init__(self, code: grpc.StatusCode, message: str, details: Details) -> None:
        super().__init__(code, message, details)  # what pickle calls the class with
        self.code = code
        self.message = message
        self.reason = details.reason
        self.metadata: Mapping[str, str] = details.metadata
        self.field_violations: tuple[FieldViolation, ...] = details.field_violations
        self.retry_after_s = details.retry_after_s
        self.resource = details.resource

    def __str__(self) -> str:
        return f"{self.message} [{self.reason or self.code.name}]"

    def __repr__(self) -> str:
        told = f"code={self.code.name}, reason={self.reason!r}, message={self.message!r}"
        return f"{type(self).__name__}({told})"


class InvalidRequest(CallFailed):
    """A field is missing, contradictory or out of range; see `field_violations`."""


class UnknownName(CallFailed):
    """The server has no such model or drafter."""


class DuplicateRequest(CallFailed):
    """The request id belongs to a live request."""


class Unsupported(CallFailed):
    """The server does not have this feature, or this call."""


class Overloaded(CallFailed):
    """The server has no room now; try again after `retry_after_s`."""


class MessageTooLarge(CallFailed):
    """The request or the answer exceeds the size that a message may have; a retry cannot help."""


class NotReady(CallFailed):
    """The server is starting, draining or not there; try again later."""


class WrongState(CallFailed):
    """The server cannot do this until its operator changes something."""


class DeadlineExceeded(CallFailed):
    """The timeout of the call has passed."""


class CallCancelled(CallFailed):
    """The call was cancelled."""


class NotAuthenticated(CallFailed):
    """The credentials are missing or wrong."""


class NotPermitted(CallFailed):
    """The caller may not do this."""


class InternalError(CallFailed):
    """The server failed; `metadata["error_id"]`, where present, finds the cause in its log."""


ERRORS: Mapping[grpc.StatusCode, type[CallFailed]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: UnknownName,
    grpc.StatusCode.ALREADY_EXISTS: DuplicateRequest,
    grpc.StatusCode.UNIMPLEMENTED: Unsupported,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: NotReady,
    grpc.StatusCode.FAILED_PRECONDITION: WrongState,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: CallCancelled,
    grpc.StatusCode.ABORTED: CallCancelled,
    grpc.StatusCode.UNAUTHENTICATED: NotAuthenticated,
    grpc.StatusCode.PERMISSION_DENIED: NotPermitted,
    grpc.StatusCode.INTERNAL: InternalError,
    grpc.StatusCode.UNKNOWN: InternalError,
    grpc.StatusCode.DATA_LOSS: InternalError,
}


def error_from(error: grpc.RpcError) -> CallFailed:
    """Returns the typed error of a failed call, sync or async."""
    details = Details()
    trailers: Any = error.trailing_metadata() or ()  # pairs, in either form of grpc
    for key, value in trailers:
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            details = details_from(value)
    return failure(error.code(), error.details() or "", details)


def failure(code: grpc.StatusCode, message: str, details: Details | None = None) -> CallFailed:
    """Returns the typed error of a status."""
    details = details or Details()
    kind = ERRORS.get(code, CallFailed)
    if kind is Overloaded and not details.reason and TOO_LARGE in message:
        kind = MessageTooLarge
    return kind(code, message, details)
