"""Message classes of public protos, without the packages that generate them.

Knows how to declare messages in a descriptor pool of their own, so that a program may load the real
packages, in any version, beside this one. Knows no message itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

TYPES = {
    "int64": FieldDescriptorProto.TYPE_INT64,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}
# Per message the fields by number: name, then type; a trailing * marks a repeated field. A map is
# on the wire what a repeated entry is, and an enum what an int32 is.
Messages = Mapping[str, Mapping[int, tuple[str, str]]]


def message_classes(package: str, messages: Messages) -> dict[str, Any]:
    """Returns a class for each of `messages`, by name."""
    pool = DescriptorPool()
    pool.Add(_declaration(package, messages))
    return {
        name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages
    }


def _declaration(package: str, messages: Messages) -> FileDescriptorProto:
    file = FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
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
                declared.type_name = f".{package}.{kind.rstrip('*')}"
    return file
