"""Rules for fields that requests of all services share.

Knows protobuf and no message in particular. Invariant: each function gives the field's value or
raises an error that names the field.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar, cast

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from specd.errors import InvalidField, UnsupportedField

T = TypeVar("T", bool, int, float)

# Parts of a repeated field in which an unknown field is looked for, to tell its number.
MAX_SEARCHED = 1000
# Beyond it nobody looks which field it is: each look copies the message.
MAX_SEARCHED_BYTES = 64 * 1024


def value_or(message: Message, field: str, default: T) -> T:
    """Returns a field with presence, or `default` where it is unset."""
    return cast(T, getattr(message, field)) if message.HasField(field) else default


def seconds_from(field: str, duration: Duration, *, low: float, high: float) -> float:
    """Returns a Duration in seconds. Raises InvalidField if malformed or outside of low to high."""
    seconds = duration.seconds + duration.nanos / 1e9
    well_formed = 0 <= duration.nanos < 10**9 and duration.seconds >= 0
    if not (well_formed and low <= seconds <= high):
        raise InvalidField(field, f"must be between {low:g} and {high:g} s")
    return seconds


def token_ids_from(field: str, ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Raises InvalidField for the first id that is outside the vocabulary."""
    if max(ids, default=0) >= vocab_size:
        index = next(i for i, token_id in enumerate(ids) if token_id >= vocab_size)
        raise InvalidField(
            f"{field}[{index}]", f"{ids[index]} is outside the vocabulary of {vocab_size}"
        )
    return tuple(ids)


def check_enum(field: str, value: int, known: Iterable[int]) -> None:
    """Raises InvalidField for a number that this revision of the enum does not have."""
    if value not in known:
        raise InvalidField(field, f"{value} is no value of this enum")


def refuse_if(field: str, is_set: bool) -> None:
    """Raises UnsupportedField for a field that is set and whose feature does not exist yet."""
    if is_set:
        raise UnsupportedField(field)


def refuse_unknown_fields(message: Message, path: str = "") -> None:
    """Raises UnsupportedField for a field number that this revision of the protocol lacks.

    Protobuf drops such fields without a word; their sender meant something by them.
    """
    # Half a million messages take 90 ms in one look, and half a second one by one.
    if not _has_unknown_fields(message):
        return
    if message.ByteSize() > MAX_SEARCHED_BYTES:
        raise UnsupportedField("request")
    if (number := _first_unknown_field(message)) is not None:
        raise UnsupportedField(f"{path}#{number}")
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for part in value[:MAX_SEARCHED] if field.is_repeated else [value]:
            refuse_unknown_fields(part, f"{path}{field.name}.")
    raise UnsupportedField(path.removesuffix(".") or "request")


def _has_unknown_fields(message: Message) -> bool:
    """At any depth."""
    known = _copy(message)
    known.DiscardUnknownFields()
    return known.ByteSize() != message.ByteSize()


def _first_unknown_field(message: Message) -> int | None:
    """Of the message itself. (UnknownFieldSet takes a microsecond for each field there is.)"""
    rest = _copy(message)
    for field, _ in message.ListFields():
        rest.ClearField(field.name)
    tag = 0
    for place, byte in enumerate(rest.SerializeToString()):
        tag |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return tag >> 3
    return None


def _copy(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
