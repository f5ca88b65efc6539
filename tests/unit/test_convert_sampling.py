"""How tokens are chosen and when a generation ends: what a caller may ask, and what it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from specd_client.v1 import types_pb2

from specd import errors
from specd.engine.params import SamplingParams, StopParams
from specd.server import convert
from tests.support.converting import INF, LIMITS, NAN, params, text_request


def test_every_field_of_sampling_arrives() -> None:
    message = types_pb2.SamplingParams(
        temperature=0.5,
        top_k=5,
        top_p=0.25,
        min_p=0.125,
        seed=2**64 - 1,
        repetition_penalty=1.5,
        presence_penalty=-2.0,
        frequency_penalty=0.25,
        logit_bias={99: -1000.0, 0: 0.5, 7: 1000.0},
        num_sequences=16,
    )
    found = params(text_request(sampling=message))
    assert found.sampling == SamplingParams(
        temperature=0.5,
        top_k=5,
        top_p=0.25,
        min_p=0.125,
        seed=2**64 - 1,
        repetition_penalty=1.5,
        presence_penalty=-2.0,
        frequency_penalty=0.25,
        logit_bias=((0, 0.5), (7, 1000.0), (99, -1000.0)),
    )
    assert found.num_sequences == 16


def test_a_bound_of_the_repetition_penalty_is_inside_although_the_wire_rounds_it() -> None:
    message = types_pb2.SamplingParams(repetition_penalty=0.01)
    assert message.repetition_penalty < 0.01
    assert params(text_request(sampling=message)).sampling.repetition_penalty == pytest.approx(0.01)


def test_every_field_of_stop_arrives() -> None:
    message = types_pb2.StopParams(
        max_new_tokens=3,
        min_new_tokens=3,
        stop_strings=["a", "b"],
        stop_token_ids=[4, 9, 4],
        ignore_eos=True,
        include_stop_string=True,
    )
    assert params(text_request(stop=message)).stop == StopParams(
        max_new_tokens=3,
        stop_strings=("a", "b"),
        stop_token_ids=frozenset({4, 9}),
        ignore_eos=True,
        include_stop_string=True,
        min_new_tokens=3,
    )


def test_a_seed_of_zero_is_a_seed() -> None:
    assert params(text_request(sampling={"seed": 0})).sampling.seed == 0


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 1e30])
def test_every_finite_temperature_from_zero_up_is_taken(temperature: float) -> None:
    found = params(text_request(sampling={"temperature": temperature}))
    assert found.sampling.temperature == pytest.approx(temperature)


@pytest.mark.parametrize("top_k", [100, 2**31 - 1])
def test_a_top_k_that_keeps_the_whole_vocabulary_is_off(top_k: int) -> None:
    assert params(text_request(sampling={"top_k": top_k})).sampling.top_k == 0


def test_features_that_are_switched_off_explicitly_are_taken() -> None:
    off = types_pb2.SamplingParams(
        repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=-0.0, num_sequences=1
    )
    found = params(text_request(sampling=off, stop={"min_new_tokens": 0}))
    assert found == params(text_request())
    assert not found.sampling.penalises


SAMPLING: list[tuple[str, dict[str, Any]]] = [
    *(("temperature", {"temperature": value}) for value in (-0.1, NAN, INF)),
    *(("top_p", {"top_p": value}) for value in (0.0, 1.5, NAN)),
    ("top_k", {"top_k": 2**31}),
    *(("min_p", {"min_p": value}) for value in (-0.1, 1.1, NAN)),
    *(("num_sequences", {"num_sequences": value}) for value in (0, 17, 2**32 - 1)),
    *(("repetition_penalty", {"repetition_penalty": v}) for v in (0.0, 0.009, 100.1, NAN, INF)),
    *(("presence_penalty", {"presence_penalty": value}) for value in (-100.1, 100.1, NAN)),
    *(("frequency_penalty", {"frequency_penalty": value}) for value in (-100.1, 100.1, -INF)),
    ("logit_bias", {"logit_bias": dict.fromkeys(range(1025), 1.0)}),
    ("logit_bias[100]", {"logit_bias": {5: 1.0, 100: 1.0}}),
    ("logit_bias[4294967295]", {"logit_bias": {2**32 - 1: 1.0}}),
    *(("logit_bias[5]", {"logit_bias": {4: 1.0, 5: v}}) for v in (NAN, INF, -INF, 1001, -1001)),
]
STOP: list[tuple[str, dict[str, Any]]] = [
    ("max_new_tokens", {"max_new_tokens": 0}),
    ("min_new_tokens", {"max_new_tokens": 2, "min_new_tokens": 3}),
    ("min_new_tokens", {"min_new_tokens": 16}),
    ("stop_strings[1]", {"stop_strings": ["a", ""]}),
    ("stop_strings[0]", {"stop_strings": ["x" * 1025]}),
    ("stop_strings", {"stop_strings": ["x"] * 17}),
    ("stop_token_ids[0]", {"stop_token_ids": [100]}),
    ("stop_token_ids", {"stop_token_ids": [1] * 257}),
]
INVALID = [
    *((f"sampling.{field}", {"sampling": parts}) for field, parts in SAMPLING),
    *((f"stop.{field}", {"stop": parts}) for field, parts in STOP),
]


@pytest.mark.parametrize(("field", "parts"), INVALID)
def test_a_bad_value_is_refused_by_the_path_of_its_field(field: str, parts: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidField) as refused:
        params(text_request(**parts))
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("stop_ids", "ignore_eos", "is_taken"),
    [(range(1, 100), False, False), (range(2, 100), False, True), (range(1, 100), True, True)],
)
def test_what_cannot_be_chosen_at_first_has_to_leave_a_token(
    stop_ids: Sequence[int], ignore_eos: bool, is_taken: bool
) -> None:
    stop = types_pb2.StopParams(stop_token_ids=stop_ids, ignore_eos=ignore_eos, min_new_tokens=1)
    limits = replace(LIMITS, end_ids=frozenset({0}))
    with nullcontext() if is_taken else pytest.raises(errors.InvalidField, match="min_new_tokens"):
        convert.params_from(text_request(stop=stop), limits=limits)
