"""The law behind the model: no draft, step or neighbour changes a token or a bit of a logprob."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from specd.engine.params import SamplingParams
from specd.engine.step_types import RowFault
from tests.unit.device.streams import (
    END,
    VOCAB,
    Asked,
    Stream,
    decoded_plainly,
    decoded_together,
    random_asked,
    step,
)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_drafts_chunks_and_neighbours_change_no_token_and_no_bit(seed: int) -> None:
    rng = random.Random(seed)
    truths = [decoded_plainly(random_asked(rng)) for _ in range(rng.randint(1, 4))]
    for truth, found in zip(truths, decoded_together(truths, rng), strict=True):
        assert found.outcome == truth.outcome


def test_the_requests_above_cover_what_they_should() -> None:
    """Drafts are accepted and rejected, and both faults happen, or equality would prove little."""
    rng = random.Random(0)
    truths = [decoded_plainly(random_asked(rng)) for _ in range(80)]
    found = decoded_together(truths, rng)
    assert {None, RowFault.NOT_FINITE, RowFault.NO_MASK} == {truth.fault for truth in truths}
    assert any(truth.fault and truth.answer for truth in truths)
    accepted, drafted = sum(each.accepted for each in found), sum(each.drafted for each in found)
    assert 100 < accepted < drafted - 100
    for truth, stream in zip(truths, found, strict=True):
        assert stream.outcome == truth.outcome


def in_one_step(asked: Asked) -> Stream:
    """All tokens but the last as one draft that is right."""
    truth = decoded_plainly(asked)
    stream = Stream(asked)
    step([stream], [len(asked.prompt)], [truth.answer[:-1]])
    assert stream.accepted == asked.num_tokens - 1
    assert stream.outcome == truth.outcome
    return stream


def test_a_whole_answer_is_accepted_in_one_step_with_penalties() -> None:
    params = SamplingParams(temperature=0, frequency_penalty=0.9, repetition_penalty=1.2)
    answer = in_one_step(Asked((1, 2), params)).answer
    assert answer != in_one_step(Asked((1, 2), SamplingParams(temperature=0))).answer


def test_end_tokens_wait_for_min_new_tokens_inside_one_draft() -> None:
    eager = SamplingParams(temperature=0, logit_bias=((END, 100.0),))
    answer = in_one_step(Asked((1, 2), eager, min_new_tokens=9)).answer
    assert END not in answer[:9] and answer[9:] == [END] * 5


def test_log_probabilities_belong_to_their_own_tokens() -> None:
    asked = Asked((1, 2), SamplingParams(temperature=0), top_logprobs=VOCAB)
    stream = in_one_step(asked)
    best = [entry.alternatives[0] for entry in stream.logprobs]
    assert [entry.token_id for entry in stream.logprobs] == stream.answer
    assert [token for token, _ in best] == stream.answer
    assert len({value for _, value in best}) > 10
