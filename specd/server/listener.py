"""The gRPC listeners: bind, tell their health truthfully, stop.

Knows grpc.aio and its options; the services are its neighbours. Invariant: the addresses are bound
before the model loads, and health says SERVING exactly while Generate is admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from specd_client.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)

from specd.addresses import Address
from specd.server.admin import AdminServicer
from specd.server.binding import Binding
from specd.server.decoding import GuardDecoding
from specd.server.front import Front
from specd.server.generation import GenerationServicer
from specd.server.health import HealthServicer
from specd.server.message_sizes import MAX_MESSAGE_BYTES
from specd.server.model import ModelServicer
from specd.server.reflection import add_reflection
from specd.server.tls import Certificates

GENERATION = generation_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name
MODEL = model_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name
ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name


@dataclass(frozen=True, slots=True)
class Connections:
    """What a listener does with its connections.

    keepalive_s: after so long without a word the peer is asked, and after as long again given up.
    max_age_s: after so long a connection takes no new calls, so that its client connects anew,
    maybe elsewhere; 0 is never. reflection: whether the services describe themselves.
    certificates: for TCP addresses; None is plain text.
    """

    keepalive_s: float
    max_age_s: float
    reflection: bool
    certificates: Certificates | None = None

    def options(self) -> Sequence[tuple[str, Any]]:
        """As grpc takes them."""
        # Without a grace of its own, streams that run when the age is reached may end.
        age = (("grpc.max_connection_age_ms", round(self.max_age_s * 1000)),)
        keepalive_ms = round(self.keepalive_s * 1000)
        return (
            # Without this a second daemon on the same port starts silently and takes half of the
            # calls.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            # By default a client that pings more than every 5 minutes is thrown out. Most libraries
            # allow 10 s and more; a tenth of that leaves room for jitter.
            ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
            ("grpc.keepalive_permit_without_calls", 1),
            # A machine that vanished sends no end of its connection.
            ("grpc.keepalive_time_ms", keepalive_ms),
            ("grpc.keepalive_timeout_ms", keepalive_ms),
            # Pings that gRPC sends to measure the line answer for keepalive ones; default 60 s.
            ("grpc.http2.ping_timeout_ms", keepalive_ms),
            ("grpc.http2.max_pings_without_data", 0),
            *(age if self.max_age_s else ()),
        )


class Listener:
    """Some services on some addresses."""

    def __init__(
        self,
        services: Sequence[str],
        add_to: Callable[[grpc.aio.Server], None],
        connections: Connections,
    ) -> None:
        self._server = grpc.aio.server(
            interceptors=[GuardDecoding()], options=connections.options()
        )
        self._binding = Binding(self._server, connections.certificates)
        self._health = HealthServicer(services)
        add_to(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if connections.reflection:
            add_reflection(self._server, (*services, health.SERVICE_NAME))

    async def start(self, addresses: Sequence[Address]) -> list[Address]:
        """Bind and answer; returns the real addresses, in order.

        Raises:
            AddressUnavailable: not this machine's, or in use.
        """
        try:
            bound = [await self._binding.bind(address) for address in addresses]
        except BaseException:
            self._binding.release()
            raise
        await self._server.start()
        return bound

    def set_serving(self, serving: bool) -> None:
        """Tell health watchers whether calls are admitted."""
        self._health.set(serving)

    async def stop(self, grace_s: float) -> None:
        """Close the addresses, let handlers end for `grace_s`, then cancel them."""
        self._binding.release()  # first: what lies there later may be a successor's
        await self._server.stop(grace_s)


def public_listener(front: Front, connections: Connections) -> Listener:
    """The listener for clients."""

    def add_to(server: grpc.aio.Server) -> None:
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(
            GenerationServicer(front), server
        )
        model_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(front), server)

    return Listener((GENERATION, MODEL), add_to, connections)


def admin_listener(front: Front, connections: Connections) -> Listener:
    """The listener for operators."""

    def add_to(server: grpc.aio.Server) -> None:
        admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(front), server)

    return Listener((ADMIN,), add_to, connections)
