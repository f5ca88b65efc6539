"""Bytes that are no message of the protocol become an ordinary refusal.

Knows that gRPC itself would answer UNKNOWN, with a traceback in the log for each. Invariant: the
handlers of specd's own services see either a decoded request or `Undecodable`, which `with_status`
refuses before they do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

OWN = "/specd."


class Undecodable:
    """Stands in for a request that could not be read."""


class GuardDecoding(grpc.aio.ServerInterceptor):
    """Lets a handler see `Undecodable` where the bytes of a request make no sense."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler of a call, its decoding guarded."""
        handler = await continuation(details)
        if handler is None or not details.method.startswith(OWN):
            return handler
        return handler._replace(request_deserializer=_guarded(handler.request_deserializer))


def _guarded(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def guarded(raw: bytes) -> Any:
        try:
            return decode(raw)
        except DecodeError:
            return Undecodable()

    return guarded
