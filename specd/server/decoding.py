"""Requests that this protocol does not have become an ordinary refusal.

Knows bytes that are no message, for which gRPC itself would answer UNKNOWN with a traceback in the
log, and fields of newer revisions, which protobuf drops without a word. Invariant: the handlers of
unary requests see either a request of which every field is known or `Refused`, which
`with_status` answers before they do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from specd.errors import InvalidField, RequestRefused
from specd.server.fields import refuse_unknown_fields

# Reflection has streams of requests, and guards them itself.
GUARDED = ("/specd.", "/grpc.health.")


@dataclass(frozen=True, slots=True)
class Refused:
    """Stands in for a request that could not be read."""

    error: RequestRefused


class GuardDecoding(grpc.aio.ServerInterceptor):
    """Lets a handler see `Refused` where the bytes of a request make no sense."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler of a call, its decoding guarded."""
        handler = await continuation(details)
        if handler is None or not details.method.startswith(GUARDED):
            return handler
        return handler._replace(request_deserializer=guarded(handler.request_deserializer))


def guarded(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return `decode` that raises nothing."""

    def decode_or_refuse(raw: bytes) -> Any:
        try:
            request = decode(raw)
            refuse_unknown_fields(request)
        except DecodeError:
            return Refused(InvalidField("request", "is no message of this protocol"))
        except RequestRefused as error:
            return Refused(error)
        return request

    return decode_or_refuse
