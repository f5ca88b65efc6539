"""Reads `grpc-status-details-bin`: the google.rpc messages that come with an error.

Knows their field numbers, which are public and fixed.

Invariant: bytes that cannot be read give empty details, never an exception; the status code and
message of the call stand without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from specd_client.declared import Messages, message_classes

MESSAGES: Messages = {
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


_CLASSES = message_classes("specd_client.details", MESSAGES)
