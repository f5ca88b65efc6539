"""What answers carry and the form that they must have: what a caller may ask, what it becomes."""

from __future__ import annotations

from typing import Any

import pytest
from specd_client.v1 import types_pb2

from specd import errors
from specd.engine.params import OutputParams, StructureParams
from tests.support.converting import params, text_request


def test_every_field_of_output_arrives() -> None:
    message = types_pb2.OutputParams(
        text=False,
        token_ids=True,
        skip_special_tokens=False,
        speculation_steps=True,
        top_logprobs=20,
        prompt_logprobs=1,
        logprob_basis=types_pb2.LOGPROB_BASIS_PROCESSED,
    )
    assert params(text_request(output=message)).output == OutputParams(
        text=False,
        token_ids=True,
        skip_special_tokens=False,
        speculation_steps=True,
        top_logprobs=20,
        prompt_logprobs=1,
        processed_logprobs=True,
    )


@pytest.mark.parametrize("field", ["top_logprobs", "prompt_logprobs"])
def test_no_alternatives_are_log_probabilities_all_the_same(field: str) -> None:
    assert getattr(params(text_request()).output, field) is None
    assert getattr(params(text_request(output={field: 0})).output, field) == 0


@pytest.mark.parametrize("basis", types_pb2.LogprobBasis.values())
def test_log_probabilities_are_raw_unless_it_says_processed(basis: int) -> None:
    output = params(text_request(output={"top_logprobs": 0, "logprob_basis": basis})).output
    assert output.processed_logprobs is (basis == types_pb2.LOGPROB_BASIS_PROCESSED)


@pytest.mark.parametrize(
    ("message", "structure"),
    [
        ({"json_schema": "{}"}, StructureParams("json_schema", ("{}",))),
        ({"regex": "a*"}, StructureParams("regex", ("a*",))),
        ({"grammar": 'start: "a"'}, StructureParams("lark", ('start: "a"',))),
        ({"choice": {"values": ["no", "a", "b"]}}, StructureParams("choice", ("no", "a", "b"))),
    ],
)
def test_each_form_of_structure_is_read(
    message: dict[str, Any], structure: StructureParams
) -> None:
    assert params(text_request()).structure is None
    assert params(text_request(structure=message)).structure == structure


def test_a_structure_of_the_largest_size_is_taken() -> None:
    for message in ({"regex": "a" * 262_144}, _choice([f"{i:0256}" for i in range(1024)])):
        assert params(text_request(structure=message)).structure is not None


def _choice(values: list[str]) -> dict[str, Any]:
    return {"choice": {"values": values}}


INVALID: list[tuple[str, dict[str, Any]]] = [
    ("output.top_logprobs", {"output": {"top_logprobs": 21}}),
    ("output.prompt_logprobs", {"output": {"prompt_logprobs": 2**32 - 1}}),
    ("output.logprob_basis", {"output": {"logprob_basis": 9, "top_logprobs": 0}}),
    ("output.logprob_basis", {"output": {"logprob_basis": 1}}),
    ("output.logprob_basis", {"output": {"logprob_basis": 2, "prompt_logprobs": 0}}),
    ("structure", {"structure": {}}),
    ("structure.json_schema", {"structure": {"json_schema": ""}}),
    ("structure.regex", {"structure": {"regex": ""}}),
    ("structure.grammar", {"structure": {"grammar": "é" * 131_073}}),
    ("structure.choice.values", {"structure": _choice([])}),
    ("structure.choice.values", {"structure": _choice([str(i) for i in range(1025)])}),
    ("structure.choice.values", {"structure": _choice(["a" * 262_144, "b"])}),
    ("structure.choice.values[1]", {"structure": _choice(["a", ""])}),
    ("structure.choice.values[2]", {"structure": _choice(["a", "b", "a"])}),
]


@pytest.mark.parametrize(("field", "parts"), INVALID)
def test_a_bad_value_is_refused_by_the_path_of_its_field(field: str, parts: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidField) as refused:
        params(text_request(**parts))
    assert refused.value.field == field


@pytest.mark.parametrize("stop", [{"min_new_tokens": 1}, {"ignore_eos": True}])
def test_a_structure_decides_its_own_end(stop: dict[str, Any]) -> None:
    (name,) = stop
    with pytest.raises(errors.InvalidField, match=f"^stop.{name}: contradicts structure"):
        params(text_request(stop=stop, structure={"regex": "a*"}))
    off = {"min_new_tokens": 0, "ignore_eos": False}
    assert params(text_request(stop=off, structure={"regex": "a*"})).structure is not None
