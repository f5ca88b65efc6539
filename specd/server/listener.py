"""The gRPC listeners: bind, tell their health truthfully, stop.

Knows grpc.aio and its options; the services are its neighbours. Invariant: the addresses are bound
before the model loads, and health says SERVING exactly while Generate is admitted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from specd_client.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)

from specd.addresses import Address, Tcp, Unix, prepare
from specd.errors import AddressUnavailable
from specd.server.admin import AdminServicer
from specd.server.decoding import GuardDecoding
from specd.server.front import Front
from specd.server.generation import GenerationServicer
from specd.server.model import ModelServicer
from specd.server.tls import Certificates

GENERATION = generation_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name
MODEL = model_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name
ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
# Sockets are for this user alone.
_UMASK = 0o177


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
        self._certificates = connections.certificates
        self._health = health.aio.HealthServicer()
        self._services = services
        add_to(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if connections.reflection:
            _add_reflection(self._server, services)

    async def start(self, addresses: Sequence[Address]) -> list[Address]:
        """Bind and answer; returns the real addresses, in order.

        Raises:
            AddressUnavailable: not this machine's, or in use.
        """
        await self.set_serving(False)
        bound: list[Address] = []
        try:
            for address in addresses:
                bound.append(self._bind(address))  # noqa: PERF401  # kept on failure
        except AddressUnavailable:
            _unlink(bound)
            raise
        await self._server.start()
        return bound

    async def set_serving(self, serving: bool) -> None:
        """Tell health watchers whether calls are admitted."""
        serving_status = health_pb2.HealthCheckResponse
        status = serving_status.SERVING if serving else serving_status.NOT_SERVING
        for name in ("", *self._services):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Close the addresses, let handlers end for `grace_s`, then cancel them."""
        await self._server.stop(grace_s)

    def _bind(self, address: Address) -> Address:
        try:
            if isinstance(address, Unix):
                return _bind_socket(self._server, address)
            if self._certificates is None:
                port = self._server.add_insecure_port(str(address))
            else:
                credentials = self._certificates.credentials()
                port = self._server.add_secure_port(str(address), credentials)
            return Tcp(address.host, port)
        except RuntimeError as error:
            raise AddressUnavailable(
                f"cannot listen on {address}: the address is in use or is not of this machine"
            ) from error


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


def _bind_socket(server: grpc.aio.Server, address: Unix) -> Unix:
    prepare(address)
    before = os.umask(_UMASK)
    try:
        server.add_insecure_port(str(address))
    finally:
        os.umask(before)
    return address


def _unlink(addresses: Sequence[Address]) -> None:
    """Remove sockets of a server that never started: gRPC leaves those lying."""
    for address in addresses:
        if isinstance(address, Unix):
            address.path.unlink(missing_ok=True)


def _add_reflection(server: grpc.aio.Server, services: Sequence[str]) -> None:
    names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME, REFLECTION_V1)
    reflection.enable_server_reflection(names, server)
    # The two versions have the same messages; clients ask for v1 first.
    servicer = reflection.aio.ReflectionServicer(names)
    messages = reflection.aio._reflection_pb2
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=messages.ServerReflectionRequest.FromString,
        response_serializer=messages.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers([
        grpc.method_handlers_generic_handler(REFLECTION_V1, {"ServerReflectionInfo": handler})
    ])
