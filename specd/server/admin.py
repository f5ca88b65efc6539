"""AdminService: changes a running daemon, on a listener of its own.

Knows the messages; what a drain does is in `admission.py`. Invariant: nothing here loads code.
"""

from __future__ import annotations

from typing import Any

import grpc
from specd_client.v1 import admin_pb2 as pb
from specd_client.v1 import admin_pb2_grpc

from specd.errors import InvalidField, UnsupportedField, WrongState
from specd.server.fields import seconds_from
from specd.server.front import Front
from specd.server.info import drafter_stats
from specd.server.status import with_status

Context = grpc.aio.ServicerContext[Any, Any]
MAX_DRAIN_S = 24 * 3600.0


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Serves Drain, ListDrafters and DeregisterDrafter; RegisterDrafter is refused."""

    def __init__(self, front: Front) -> None:
        self._front = front

    @with_status
    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainResponse:
        drained = await self._front.rooms.admission.drain(_timeout_s(request))
        return pb.DrainResponse(finished=drained.finished, aborted=drained.aborted)

    @with_status
    async def ListDrafters(
        self, request: pb.ListDraftersRequest, context: Context
    ) -> pb.ListDraftersResponse:
        rooms = self._front.rooms
        drafters = [
            pb.DrafterDescription(name=stats.name, kind=_kind(stats.name), stats=stats)
            for stats in drafter_stats(rooms.engine)
        ]
        return pb.ListDraftersResponse(drafters=drafters)

    @with_status
    async def RegisterDrafter(
        self, request: pb.RegisterDrafterRequest, context: Context
    ) -> pb.RegisterDrafterResponse:
        raise UnsupportedField("address")

    @with_status
    async def DeregisterDrafter(
        self, request: pb.DeregisterDrafterRequest, context: Context
    ) -> pb.DeregisterDrafterResponse:
        if not request.name:
            raise InvalidField("name", "name the drafter to remove")
        if request.name in self._front.rooms.limits.drafters:
            raise WrongState(f"the drafter {request.name!r} came with the daemon's settings")
        return pb.DeregisterDrafterResponse(found=False)


def _timeout_s(request: pb.DrainRequest) -> float | None:
    if not request.HasField("timeout"):
        return None
    return seconds_from("timeout", request.timeout, low=0.0, high=MAX_DRAIN_S)


def _kind(name: str) -> str:
    """Names with a colon are `module:object`."""
    return "user" if ":" in name else name
