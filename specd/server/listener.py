"""The gRPC listener: binds, tells its health truthfully, stops.

Knows grpc.aio and its options; the services are its neighbours. Invariant: the address is bound
before the model loads, and health says SERVING exactly while Generate is admitted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from specd_client.v1 import generation_pb2, generation_pb2_grpc, model_pb2, model_pb2_grpc

from specd.errors import AddressUnavailable
from specd.server.decoding import GuardDecoding
from specd.server.front import Front
from specd.server.generation import GenerationServicer
from specd.server.model import ModelServicer

GENERATION = generation_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name
MODEL = model_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name
REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"
MAX_MESSAGE_BYTES = 4 * 1024 * 1024

_OPTIONS: Sequence[tuple[str, Any]] = (
    # Without this a second daemon on the same port starts silently and takes half of the calls.
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Clients that ping every 10 s, also without a call, are welcome.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/]+):(?P<port>\d{1,5})")


class Listener:
    """One listen address with all services on it."""

    def __init__(self, front: Front) -> None:
        self._server = grpc.aio.server(interceptors=[GuardDecoding()], options=_OPTIONS)
        self._health = health.aio.HealthServicer()
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(
            GenerationServicer(front), self._server
        )
        model_pb2_grpc.add_ModelServiceServicer_to_server(ModelServicer(front), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        _add_reflection(self._server)

    async def start(self, address: str) -> str:
        """Bind `host:port` (port 0 lets the system choose) and answer; returns the real address.

        Raises:
            AddressUnavailable: malformed, not this machine's, or in use.
        """
        match = _ADDRESS.fullmatch(address)
        if match is None or int(match["port"]) > 65535:
            raise AddressUnavailable(f"--listen {address!r} should be HOST:PORT")
        await self.set_serving(False)
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise AddressUnavailable(
                f"cannot listen on {address}: the address is in use or is not of this machine"
            ) from error
        await self._server.start()
        return f"{match['host']}:{port}"

    async def set_serving(self, serving: bool) -> None:
        """Tell health watchers whether calls are admitted."""
        serving_status = health_pb2.HealthCheckResponse
        status = serving_status.SERVING if serving else serving_status.NOT_SERVING
        for name in ("", GENERATION, MODEL):
            await self._health.set(name, status)

    async def stop(self, grace_s: float) -> None:
        """Close the listener, let handlers end for `grace_s`, then cancel them."""
        await self._server.stop(grace_s)


def _add_reflection(server: grpc.aio.Server) -> None:
    names = (GENERATION, MODEL, health.SERVICE_NAME, reflection.SERVICE_NAME, REFLECTION_V1)
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
