"""Reflection: the services describe themselves, under both names of the protocol.

Knows that v1 and v1alpha have the same messages and that grpcio-reflection brings v1alpha alone.
Invariant: every service that is listed can be looked up, reflection itself included.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1ALPHA = reflection.SERVICE_NAME
V1 = "grpc.reflection.v1.ServerReflection"
_METHOD = "ServerReflectionInfo"


def add_reflection(server: grpc.aio.Server, services: Sequence[str]) -> None:
    """Let `server` describe `services` and its reflection."""
    _describe_v1()
    names = (*services, V1ALPHA, V1)
    servicer = reflection.aio.ReflectionServicer(names)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=_request_from,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    for name in (V1ALPHA, V1):
        server.add_generic_rpc_handlers([
            grpc.method_handlers_generic_handler(name, {_METHOD: handler})
        ])


def _request_from(raw: bytes) -> reflection_pb2.ServerReflectionRequest:
    """Bytes that are no request become one that asks for nothing, which the servicer refuses."""
    try:
        return reflection_pb2.ServerReflectionRequest.FromString(raw)
    except DecodeError:
        return reflection_pb2.ServerReflectionRequest()


def _describe_v1() -> None:
    """Add the file of v1 to the pool: that of v1alpha under the other name."""
    old = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(old)
    text = text_format.MessageToString(old).replace("v1alpha", "v1")
    new = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    descriptor_pool.Default().AddSerializedFile(new.SerializeToString())
