"""Log probabilities that one message may not hold are refused before anything is computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from specd_client.v1 import generation_pb2 as pb
from specd_client.v1 import types_pb2

from specd.engine import events
from specd.engine.step_types import TokenLogprob
from specd.errors import InvalidField
from specd.server import convert, wire
from specd.server.message_sizes import MAX_MESSAGE_BYTES, check_logprobs_fit
from tests.support.converting import LIMITS

# The largest vocabulary that a model file may have, where ids and ranks take most bytes.
VOCAB_SIZE = 1 << 22
LARGE = replace(LIMITS, vocab_size=VOCAB_SIZE, context_length=1 << 20)


def checked(kind: type[Any], num_prompt_tokens: int, **parts: Any) -> convert.GenerationCall:
    request = kind(input=types_pb2.Input(text="x"), **parts)
    call = convert.call_from(request, limits=LARGE)
    check_logprobs_fit(call, num_prompt_tokens, LARGE)
    return call


def most(kind: type[Any], field: str, **parts: Any) -> int:
    """How many tokens the refusal says are possible."""
    with pytest.raises(InvalidField) as refused:
        checked(kind, 1 << 19, **parts)
    assert refused.value.field == field
    return int(refused.value.problem.partition("at most ")[2].partition(";")[0])


def worst(num_alternatives: int) -> TokenLogprob:
    """The entry that takes the most bytes."""
    alternatives = ((VOCAB_SIZE - 1, -1e38),) * num_alternatives
    return TokenLogprob(VOCAB_SIZE - 1, -1e38, VOCAB_SIZE, alternatives)


@pytest.mark.parametrize("num_alternatives", [0, 20])
@pytest.mark.parametrize("kind", [pb.GenerateRequest, pb.StreamGenerateRequest])
def test_a_prompt_s_log_probabilities_are_taken_as_far_as_they_fit(
    kind: type[Any], num_alternatives: int
) -> None:
    output = types_pb2.OutputParams(prompt_logprobs=num_alternatives)
    count = most(kind, "output.prompt_logprobs", output=output)
    with pytest.raises(InvalidField):
        checked(kind, count + 1, output=output)
    call = checked(kind, count, output=output)
    started = events.Started(
        *("\U0010ffff" * 256, "m", count, 0, 2**64 - 1, 1e9, "f" * 64),
        sequence_seeds=(2**64 - 1,) * 16,
        prompt_logprobs=(worst(num_alternatives),) * count,
    )
    size = wire.response_from(started, call.params.output).ByteSize()
    assert 0.95 * MAX_MESSAGE_BYTES < size <= MAX_MESSAGE_BYTES


@pytest.mark.parametrize("num_alternatives", [0, 20])
def test_those_of_a_unary_answer_are_taken_as_far_as_they_fit(num_alternatives: int) -> None:
    output = types_pb2.OutputParams(text=False, top_logprobs=num_alternatives)
    count = most(pb.GenerateRequest, "output.top_logprobs", output=output)
    stop = types_pb2.StopParams(max_new_tokens=count)
    call = checked(pb.GenerateRequest, 1, output=output, stop=stop)
    delta = events.Delta("", (), count, logprobs=(worst(num_alternatives),) * count)
    answer = wire.WholeAnswer(call.params.output)
    answer.add(delta)
    assert 0.95 * MAX_MESSAGE_BYTES < answer.response().ByteSize() <= MAX_MESSAGE_BYTES


def test_a_unary_answer_counts_its_sequences_its_prompt_and_the_context_that_is_left() -> None:
    field = "output.top_logprobs"
    output = types_pb2.OutputParams(top_logprobs=20)
    alone = most(pb.GenerateRequest, field, output=output)
    half = types_pb2.StopParams(max_new_tokens=alone // 2)
    for num_sequences, is_taken in ((2, True), (3, False)):
        sampling = types_pb2.SamplingParams(num_sequences=num_sequences)
        parts = {"output": output, "stop": half, "sampling": sampling}
        if is_taken:
            checked(pb.GenerateRequest, 1, **parts)
        else:
            assert most(pb.GenerateRequest, field, **parts) == alone
    checked(pb.GenerateRequest, (1 << 20) - alone, output=output)
    output.prompt_logprobs = 20
    checked(pb.GenerateRequest, alone // 2, output=output, stop=half)
    with pytest.raises(InvalidField, match="use StreamGenerate"):
        checked(pb.GenerateRequest, alone // 2 + 2, output=output, stop=half)


def test_a_stream_tells_the_log_probabilities_of_an_answer_of_any_length() -> None:
    checked(pb.StreamGenerateRequest, 1, output=types_pb2.OutputParams(top_logprobs=20))
