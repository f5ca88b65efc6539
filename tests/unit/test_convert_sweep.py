"""Nothing is ignored: each field of a request, alone, has an effect or is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.struct_pb2 import Struct
from hypothesis import given, settings
from hypothesis import strategies as st
from specd_client.v1 import types_pb2

from specd import errors
from specd.server import convert
from tests.support.converting import LIMITS, Request

Path = tuple[FieldDescriptor, ...]
# Values that say what an unset field says.
DEFAULTS: dict[str, Any] = {
    "model": "tiny",
    "request_id": "r",
    "priority": 0,
    "sampling.temperature": 1.0,
    "sampling.top_p": 1.0,
    "sampling.min_p": 0.0,
    "sampling.repetition_penalty": 1.0,
    "sampling.presence_penalty": 0.0,
    "sampling.frequency_penalty": 0.0,
    "sampling.seed": 7,
    "sampling.num_sequences": 1,
    "stop.min_new_tokens": 0,
    "stop.ignore_eos": False,
    "stop.include_stop_string": False,
    "output.text": True,
    "output.token_ids": False,
    "output.skip_special_tokens": True,
    "output.speculation_steps": False,
    "output.logprob_basis": 0,
    "speculation.max_draft_tokens": 8,
}
SAME_AS_UNSET: dict[str, Callable[[Any], bool]] = {
    "sampling.top_k": lambda value: value == 0 or 100 <= value < 2**31,
    "speculation.mode": lambda value: value in (0, 2),
    "speculation.drafters": lambda value: value == ["ngram"],
}


BASES = {
    "text": types_pb2.Input(text="Once"),
    "tokens": types_pb2.Input(tokens=types_pb2.TokenIds(ids=[5])),
    "chat": types_pb2.Input(
        chat=types_pb2.ChatInput(messages=[types_pb2.ChatMessage(role="user", content="Hi")])
    ),
}


def request_with(prompt: str) -> Request:
    return Request(request_id="r", input=BASES[prompt])


def leaves(message: Descriptor, above: Path = ()) -> Iterator[Path]:
    for field in message.fields:
        path = (*above, field)
        inner = field.message_type
        if inner is None or inner.GetOptions().map_entry or inner is Struct.DESCRIPTOR:
            yield path
        else:
            yield from leaves(inner, path)


def name(path: Path) -> str:
    return ".".join(field.name for field in path)


def values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return st.just({"key": 1.0}) if field.name != "logit_bias" else st.just({1: 0.5})
    kinds: dict[int, st.SearchStrategy[Any]] = {
        FieldDescriptor.CPPTYPE_STRING: st.text(min_size=1, max_size=8),
        FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
        FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32),
        FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1) | st.integers(0, 120),
        FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
        FieldDescriptor.CPPTYPE_UINT64: st.integers(0, 2**64 - 1),
        FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1) | st.just(1),
        FieldDescriptor.CPPTYPE_ENUM: st.integers(0, 5),
    }
    one = kinds[field.cpp_type]
    return st.lists(one, min_size=1, max_size=3) if field.is_repeated else one


def put(message: Any, path: Path, value: Any) -> None:
    for field in path[:-1]:
        inner = getattr(message, field.name)
        message = inner.add() if field.is_repeated else inner
    last = path[-1]
    if last.message_type is None and not last.is_repeated:
        setattr(message, last.name, value)
    elif last.message_type is None:
        getattr(message, last.name).extend(value)
    elif last.message_type.GetOptions().map_entry:
        getattr(message, last.name).update(value)
    else:
        struct = getattr(message, last.name)
        (struct.add() if last.is_repeated else struct).update(value)


def result(request: Request) -> convert.GenerationCall | None:
    """What the request becomes, None where it is refused."""
    try:
        return convert.call_from(request, limits=LIMITS)
    except errors.RequestRefused:
        return None


LEAVES = list(leaves(Request.DESCRIPTOR))


def test_the_sweep_reaches_every_part_of_a_request() -> None:
    parts = {path[0].name for path in LEAVES}
    assert parts == set(Request.DESCRIPTOR.fields_by_name)
    assert {*DEFAULTS, *SAME_AS_UNSET} <= {name(path) for path in LEAVES}


def says_nothing(prompt: str, key: str, value: Any) -> bool:
    """Whether a field with this value says what the unset field says."""
    if key == "input.text":
        return prompt == "text" and value == "Once"
    if key == "input.add_special_tokens":
        return bool(value) is (prompt == "text")
    if key in SAME_AS_UNSET:
        return SAME_AS_UNSET[key](value)
    return key in DEFAULTS and bool(value == DEFAULTS[key])


@pytest.mark.parametrize("prompt", BASES)
@pytest.mark.parametrize("path", LEAVES, ids=name)
def test_a_field_that_is_set_changes_the_result_or_is_refused(path: Path, prompt: str) -> None:
    unset = result(request_with(prompt))
    assert unset is not None

    @settings(max_examples=30, deadline=None, derandomize=True, database=None)
    @given(value=values(path[-1]))
    def sweep(value: Any) -> None:
        request = request_with(prompt)
        put(request, path, value)
        same = result(request) == unset
        assert same is says_nothing(prompt, name(path), value)

    sweep()
