"""Requests that nobody would send: strategies for every field of a message, from its descriptor.

Knows protobuf descriptors and the values at which numbers and texts break; knows nothing of what
a field means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

MAX_DEPTH = 4
U32 = (0, 1, 2, 3, 64, 65, 511, 512, 2**31 - 1, 2**31, 2**32 - 1)
I32 = (0, 1, -1, 2**31 - 1, -(2**31), 999_999_999, 10**9)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 3e38, math.nan, math.inf, -math.inf)
TEXTS = (
    *("", "x", "user", "system", "ngram", "model", "\0", "a\nb", " ", "🙂", "e\u0301", "\ufffd"),
    *('{"type": "array"}', "[a-z]*(x|\\d)+", 'start: "a" | start "b"', "[]", "(" * 300),
    *("<|im_end|>", "{{ 1 }}", "The ferry leaves", "x" * 300, "é" * 1025, "世界" * 500),
)
NUMBERS: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.TYPE_UINT32: U32,
    FieldDescriptor.TYPE_UINT64: (*U32, 2**63, 2**64 - 1),
    FieldDescriptor.TYPE_INT32: I32,
    FieldDescriptor.TYPE_INT64: (*I32, 2**63 - 1, -(2**63), 315_576_000_000),
    FieldDescriptor.TYPE_FLOAT: FLOATS,
    FieldDescriptor.TYPE_DOUBLE: (*FLOATS, 1e308, 5e-324),
    FieldDescriptor.TYPE_BOOL: (False, True),
    FieldDescriptor.TYPE_STRING: TEXTS,
}


def messages(descriptor: Descriptor, depth: int = 0) -> SearchStrategy[Message]:
    """Messages of this type with any of its fields set to anything."""
    return _filled(descriptor, depth)


@st.composite
def _filled(draw: DrawFn, descriptor: Descriptor, depth: int) -> Message:
    message = GetMessageClass(descriptor)()
    fields = [field for field in descriptor.fields if depth < MAX_DEPTH or not field.message_type]
    # Few fields at a time: a request with two faults tells of the first alone.
    chosen = draw(st.lists(st.sampled_from(fields), max_size=3, unique=True)) if fields else []
    for field in chosen:
        set_field(message, field, draw(_value(field, depth)))
    return message


@st.composite
def mutated(draw: DrawFn, make: Callable[[], Message]) -> Message:
    """A fresh message of `make` in which up to three fields, at any depth, are something else."""
    message = make()
    paths = _paths(message.DESCRIPTOR)
    for path in draw(st.lists(st.sampled_from(paths), max_size=3)) if paths else []:
        place = message
        for outer in path[:-1]:
            place = getattr(place, outer.name)
        set_field(place, path[-1], draw(_value(path[-1], len(path))))
    return message


def _paths(descriptor: Descriptor, depth: int = 0) -> list[tuple[FieldDescriptor, ...]]:
    """Ways to every field of the message and of the single messages in it."""
    found: list[tuple[FieldDescriptor, ...]] = []
    for field in descriptor.fields:
        found.append((field,))
        if field.message_type is not None and not field.is_repeated and depth < MAX_DEPTH:
            found += [(field, *rest) for rest in _paths(field.message_type, depth + 1)]
    return found


@st.composite
def broken(draw: DrawFn, whole: SearchStrategy[Message]) -> bytes:
    """The bytes of a message with some of them flipped, cut, repeated or followed by others."""
    raw = bytearray(draw(whole).SerializeToString())
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, max(0, len(raw) - 1)))
        match draw(st.sampled_from(["flip", "cut", "insert", "append"])):
            case "flip" if raw:
                raw[place] ^= draw(st.integers(1, 255))
            case "cut":
                del raw[place:]
            case "insert":
                raw[place:place] = draw(st.binary(min_size=1, max_size=4))
            case "append":
                number, kind = draw(st.integers(1, 2**29 - 1)), draw(st.integers(0, 7))
                raw += varint(number << 3 | kind) + draw(st.binary(max_size=9))
    return bytes(raw)


def senseless(message: Message, path: str = "") -> Iterator[str]:
    """Paths of fields that are set to no number, or to a value that their enum does not have."""
    for field, value in message.ListFields():
        here = f"{path}.{field.name}"
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            values = list(value.values())
        else:
            values = list(value) if field.is_repeated else [value]
        for one in values:
            if isinstance(one, Message):
                yield from senseless(one, here)
            elif isinstance(one, float) and not math.isfinite(one):
                yield here
            elif field.enum_type is not None and one not in field.enum_type.values_by_number:
                yield here


def varint(value: int) -> bytes:
    """An unsigned number as protobuf writes it."""
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def _value(field: FieldDescriptor, depth: int) -> SearchStrategy[Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return st.dictionaries(_value(key, depth), _value(value, depth + 1), max_size=2)
    one = _single(field, depth)
    if not field.is_repeated:
        return one
    return st.lists(one, max_size=3) | one.map(lambda value: [value] * 300)


def _single(field: FieldDescriptor, depth: int) -> SearchStrategy[Any]:
    if field.message_type is not None:
        return messages(field.message_type, depth + 1)
    if field.enum_type is not None:
        known = [value.number for value in field.enum_type.values]
        return st.sampled_from([*known, 9, -1, 2**31 - 1])
    return st.sampled_from(NUMBERS[field.type])


def set_field(message: Message, field: FieldDescriptor, value: Any) -> None:
    """Replace a field of any kind; an empty message counts as set."""
    message.ClearField(field.name)
    target: Any = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        for key, item in value.items():
            if isinstance(item, Message):
                target[key].CopyFrom(item)
            else:
                target[key] = item
    elif field.is_repeated:
        target.extend(value)
    elif field.message_type is not None:
        target.CopyFrom(value)
        target.SetInParent()
    else:
        setattr(message, field.name, value)
