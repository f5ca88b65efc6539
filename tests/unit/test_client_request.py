"""Which fields the options of the client fill."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor
from specd_client.request import Options, request_from
from specd_client.v1 import generation_pb2 as pb

ENDLESS: dict[str, Any] = {}
ENDLESS["a"] = ENDLESS
BAD_CALLS: list[tuple[tuple[Any, Any, Any], dict[str, Any]]] = [
    ((None, None, None), {}),
    (("Hi", [1], None), {}),
    (("Hi", None, None), {"temprature": 1.0}),
    (("Hi", None, None), {"stop_strings": "abc"}),
    (("Hi", None, None), {"tools": [{"name": "f"}]}),
    ((None, [1], None), {"template_arguments": {}}),
    ((None, None, []), {"template_arguments": {"a": object()}}),
    (("Hi", None, None), {"regex": "a", "choice": ["a"]}),
    (("Hi", None, None), {"json_schema": {}, "regex": "a"}),
    (("Hi", None, None), {"logprob_basis": "raw"}),
    (("Hi", None, None), {"logprob_basis": 1}),
    (("Hi", None, None), {"json_schema": {"a": object()}}),
    (("Hi", None, None), {"json_schema": {"a": float("nan")}}),
    (("Hi", None, None), {"json_schema": ENDLESS}),
    (("Hi", None, None), {"choice": "abc"}),
]


@pytest.mark.parametrize(("prompt", "options"), BAD_CALLS)
def test_a_call_that_cannot_be_meant_is_a_type_error(
    prompt: tuple[Any, Any, Any], options: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        request_from(*prompt, options)


def leaves(message: Descriptor, above: str = "") -> Iterator[str]:
    for field in message.fields:
        inner = field.message_type
        if inner is None or inner.file.package != "specd.v1" or inner.GetOptions().map_entry:
            yield above + field.name
        else:
            yield from leaves(inner, f"{above}{field.name}.")


VALUES: dict[str, list[Any]] = {
    "request_id": ["r"],
    "model": ["m"],
    "tenant": ["t"],
    "tools": [[{"name": "f"}]],
    "template_arguments": [{"today": 1.0}],
    "logit_bias": [{1: 0.5}],
    "stop_strings": [["a"]],
    "stop_token_ids": [[1]],
    "drafters": [["ngram"]],
    "prediction": ["text", [1]],
    "json_schema": ["{}", {"type": "object"}],
    "logprob_basis": ["RAW", "PROCESSED"],
    "regex": ["a"],
    "grammar": ["a"],
    "choice": [["a"]],
}


def set_leaves(message: Any, above: str = "") -> Iterator[str]:
    for field, value in message.ListFields():
        inner = field.message_type
        if inner is None or inner.file.package != "specd.v1" or inner.GetOptions().map_entry:
            yield above + field.name
        else:
            for part in value if field.is_repeated else [value]:
                yield from set_leaves(part, f"{above}{field.name}.")


def test_every_field_of_a_request_has_an_option() -> None:
    requests = [
        request_from("Hi", None, None, {}),
        request_from(None, [1], None, {}),
        request_from(None, None, [{"role": "user", "content": "Hi"}], {}),
    ]
    for option in Options.__annotations__:
        values = VALUES.get(option, [1])
        chat = option in {"tools", "template_arguments"}
        prompt: tuple[Any, Any, Any] = (
            (None, None, [{"role": "user", "content": "Hi"}]) if chat else ("Hi", None, None)
        )
        requests += [request_from(*prompt, {option: value}) for value in values]
    reached = {leaf for request in requests for leaf in set_leaves(request)}
    assert reached == set(leaves(pb.StreamGenerateRequest.DESCRIPTOR))


def test_a_schema_is_sent_as_its_text_or_as_text_of_the_same_order() -> None:
    for given, sent in ((" {} ", " {} "), ({"b": "é", "a": [True]}, '{"b": "é", "a": [true]}')):
        request = request_from("Hi", None, None, {"json_schema": given})
        assert request.structure.json_schema == sent


def test_the_basis_of_log_probabilities_goes_by_its_name() -> None:
    for name, value in (("RAW", 1), ("PROCESSED", 2)):
        assert request_from("Hi", None, None, {"logprob_basis": name}).output.logprob_basis == value


def test_no_alternatives_are_asked_for_as_zero_and_nothing_as_nothing() -> None:
    request = request_from("Hi", None, None, {"top_logprobs": 0, "prompt_logprobs": None})
    assert request.output.HasField("top_logprobs")
    assert not request.output.HasField("prompt_logprobs")


def nested(depth: int, *, in_lists: bool = False) -> dict[str, Any]:
    value: Any = 1
    for _ in range(depth):
        value = [value] if in_lists else {"a": value}
    return {"a": value}


TOO_DEEP = {
    "objects": nested(32),
    "lists": nested(48, in_lists=True),
    "thousands": nested(2000),
    "endless": ENDLESS,
}


@pytest.mark.parametrize("option", ["template_arguments", "tools"])
@pytest.mark.parametrize("value", TOO_DEEP.values(), ids=TOO_DEEP)
def test_what_is_nested_deeper_than_a_parser_goes_is_refused_by_name(
    option: str, value: dict[str, Any]
) -> None:
    given = {option: [value] if option == "tools" else value}
    with pytest.raises(ValueError, match=f"^{option} is nested deeper"):
        request_from(None, None, [], given)


@pytest.mark.parametrize("value", [nested(31), nested(47, in_lists=True)])
def test_what_a_parser_takes_is_sent(value: dict[str, Any]) -> None:
    request = request_from(None, None, [], {"template_arguments": value, "tools": [value]})
    assert pb.StreamGenerateRequest.FromString(request.SerializeToString()) == request
