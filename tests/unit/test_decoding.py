"""Bytes become a request of which every field is known, or a refusal."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import struct_pb2
from specd_client.v1 import admin_pb2, generation_pb2, model_pb2, types_pb2

from specd import errors
from specd.server.decoding import Refused, guarded

NEWER = b"\xb8\x3e\x01"  # field 999, varint 1


def test_a_request_of_known_fields_comes_through() -> None:
    request = generation_pb2.StreamGenerateRequest(request_id="r", sampling={"seed": 7})
    decode = guarded(generation_pb2.StreamGenerateRequest.FromString)
    assert decode(request.SerializeToString()) == request


def test_bytes_that_are_no_message_are_refused() -> None:
    refused = guarded(generation_pb2.AbortGenerationRequest.FromString)(b"\xff\xff\xff")
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, errors.InvalidField)


@pytest.mark.parametrize(
    ("path", "field"), [("", "#999"), ("sampling", "sampling.#999"), ("input", "input.#999")]
)
def test_a_field_of_a_newer_protocol_is_refused_with_its_path(path: str, field: str) -> None:
    request = generation_pb2.StreamGenerateRequest()
    (getattr(request, path) if path else request).MergeFromString(NEWER)
    refused = guarded(type(request).FromString)(request.SerializeToString())
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, errors.UnsupportedField)
    assert refused.error.field == field


@pytest.mark.parametrize(
    "kind",
    [
        generation_pb2.AbortGenerationRequest,
        model_pb2.GetServerInfoRequest,
        model_pb2.WatchServerInfoRequest,
        model_pb2.DetokenizeRequest,
        admin_pb2.DrainRequest,
    ],
)
def test_every_request_refuses_what_it_does_not_know(kind: Any) -> None:
    assert isinstance(guarded(kind.FromString)(NEWER), Refused)


@pytest.mark.parametrize(("place", "field"), [(0, "messages.#999"), (1999, "chat")])
def test_a_field_that_one_of_many_messages_has_is_refused_too(place: int, field: str) -> None:
    messages = [types_pb2.ChatMessage(role="user") for _ in range(2000)]
    messages[place].MergeFromString(NEWER)
    request = model_pb2.TokenizeRequest(input={"chat": types_pb2.ChatInput(messages=messages)})
    refused = guarded(type(request).FromString)(request.SerializeToString())
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, errors.UnsupportedField)
    assert refused.error.field.endswith(field)


def test_a_field_inside_of_a_map_is_refused_too() -> None:
    """Their entries are no messages that one could look at."""
    value = struct_pb2.Value(string_value="x")
    value.MergeFromString(NEWER)
    arguments = struct_pb2.Struct()
    arguments.fields["a"].CopyFrom(value)
    chat = types_pb2.ChatInput(template_arguments=arguments)
    request = model_pb2.TokenizeRequest(input={"chat": chat})
    refused = guarded(type(request).FromString)(request.SerializeToString())
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, errors.UnsupportedField)
    assert refused.error.field == "input.chat.template_arguments"
