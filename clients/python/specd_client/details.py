"""Reads `grpc-status-details-bin`: the google.rpc messages that come with an error.

Knows their field numbers, which are public and fixed, and keeps the declarations in a descriptor
pool of its own, so that a program may load googleapis-common-protos, in any version, beside this.

Invariant: bytes that cannot be read give empty details, never an exception; the status code and
message of the call stand without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "specd_client.details"
TYPES = {
    "int64": FieldDescriptorProto.TYPE_INT64,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}
# Per message the fields by number: name, then type; a trailing * marks a repeated field. A map is
# on the wire what a repeated entry is.
MESSAGES: Mapping[str, Mapping[int, tuple[str, str]]] = {
    "Status": {1: ("code", "int32"), 2: ("message", "string"), 3: ("details", "Packed*")},
    "Packed": {1: ("type_url", "string"), 2: ("value", "bytes")},
    "ErrorInfo": {1: ("reason", "string"), 2: ("domain", "string"), 3: ("metadata", "Entry*")},
    "Entry": {1: ("key", "string"), 2: ("value", "string")},
    "BadRequest": {1: ("field_violations", "Violation*")},
    "Violation": {1: ("field", "string"), 2: ("description", "string")},
    "RetryInfo": {1: ("retry_delay", "Delay")},
    "Delay": {1: ("seconds", "int64"), 2: ("nanos", "int32")},
    "ResourceInfo": {1: ("resource_type", "string"), 2: ("resource_name", "string")},
}


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field of a request that was refused, by its path in the wire message."""

    field: str
    description: str


@dataclass(frozen=True, slots=True)
class Details:
    """What an error says besides code and message. retry_after_s: None where not told."""

    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    field_violations: tuple[FieldViolation, ...] = ()
    retry_after_s: float | None = None
    resource: tuple[str, str] | None = None


def details_from(serialized: bytes) -> Details:
    """Returns what the value of `grpc-status-details-bin` says."""
    try:
        status = _CLASSES["Status"].FromString(serialized)
        return Details(**_collected(status))
    except DecodeError:
        return Details()


def _collected(status: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for packed in status.details:
        match packed.type_url.rpartition("/")[2]:
            case "google.rpc.ErrorInfo":
                info = _CLASSES["ErrorInfo"].FromString(packed.value)
                found["reason"] = info.reason
                found["metadata"] = {entry.key: entry.value for entry in info.metadata}
            case "google.rpc.BadRequest":
                bad = _CLASSES["BadRequest"].FromString(packed.value)
                found["field_violations"] = tuple(
                    FieldViolation(item.field, item.description) for item in bad.field_violations
                )
            case "google.rpc.RetryInfo":
                delay = _CLASSES["RetryInfo"].FromString(packed.value).retry_delay
                found["retry_after_s"] = delay.seconds + delay.nanos / 1e9
            case "google.rpc.ResourceInfo":
                resource = _CLASSES["ResourceInfo"].FromString(packed.value)
                found["resource"] = (resource.resource_type, resource.resource_name)
    return found


def _declaration() -> FileDescriptorProto:
    file = FileDescriptorProto(name=f"{PACKAGE}.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field_name, kind) in fields.items():
            declared = message.field.add(name=field_name, number=number)
            declared.label = FieldDescriptorProto.LABEL_OPTIONAL
            if kind.endswith("*"):
                declared.label = FieldDescriptorProto.LABEL_REPEATED
            if kind in TYPES:
                declared.type = TYPES[kind]
            else:
                declared.type = FieldDescriptorProto.TYPE_MESSAGE
                declared.type_name = f".{PACKAGE}.{kind.rstrip('*')}"
    return file


def _message_classes() -> dict[str, Any]:
    pool = DescriptorPool()
    pool.Add(_declaration())
    return {
        name: GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES
    }


_CLASSES = _message_classes()
