"""grpc.health.v1: whether this daemon takes calls, told truthfully and at once.

Knows the protocol of the standard. Written here because the servicer of grpcio-health-checking lets
one watcher who reads nothing hold up every change, and one who leaves silence the others.
Invariant: a change waits for nobody; every watcher is told each status that it has not seen, or a
later one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specd.errors import UnknownName
from specd.server.status import with_status

Context = grpc.aio.ServicerContext[Any, Any]


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it has no types
    """Serves Check and Watch for some services, and for the daemon as a whole under ""."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = ("", *services)
        self._serving = False
        self._changed = asyncio.Event()  # of the status that holds now; set when it goes

    def set(self, serving: bool) -> None:
        """Say whether calls are taken."""
        if serving is not self._serving:
            self._serving = serving
            self._changed.set()
            self._changed = asyncio.Event()

    @with_status
    async def Check(self, request: Any, context: Context) -> Any:
        if request.service not in self._services:
            raise UnknownName("service", request.service, list(self._services[1:]))
        return _response(self._status(request.service))

    @with_status
    async def Watch(self, request: Any, context: Context) -> None:
        told = None
        while True:
            changed = self._changed
            status = self._status(request.service)
            if status != told:
                await context.write(_response(status))
                told = status
            else:
                await changed.wait()

    def _status(self, service: str) -> str:
        if service not in self._services:
            return "SERVICE_UNKNOWN"  # Watch may name what is not there yet
        return "SERVING" if self._serving else "NOT_SERVING"


def _response(status: str) -> Any:
    return health_pb2.HealthCheckResponse(status=status)
