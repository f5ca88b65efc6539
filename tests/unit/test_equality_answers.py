"""A difference is seen wherever it is: every part of an answer, every bit of a log probability."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from specd_client import (
    Alternative,
    Delta,
    Finished,
    FinishReason,
    SequenceFinished,
    SpeculationStats,
    Started,
    TokenLogprob,
    Usage,
)
from specd_client.events import DrafterTally

from benchmarks.equality.answers import Answer, Heard, broken_sums

STARTED = Started(
    request_id="r",
    model="m",
    prompt_tokens=3,
    cached_prompt_tokens=0,
    seed=5,
    queue_time_s=0.0,
    arithmetic_fingerprint="f",
    sequence_seeds=(5,),
    prompt_logprobs=(),
)
TOTAL = DrafterTally(2, 3, 1, (1, 1), 0, 0, 0, 0.0, 0.0)
END = SequenceFinished(0, FinishReason.MAX_TOKENS, None, None)


def scored(token_id: int, logprob: float) -> TokenLogprob:
    others = (Alternative(token_id, logprob), Alternative(9, -3.0))
    return TokenLogprob(token_id=token_id, logprob=logprob, alternatives=others, rank=1)


def heard(**changes: Any) -> Heard:
    """Three tokens in two deltas."""
    told = Heard()
    scores = [scored(token, -0.5 - token) for token in (7, 8, 9)]
    told.take(STARTED)
    told.take(Delta(0, "ab", (7, 8), tuple(scores[:2]), 2, ()))
    told.take(Delta(0, "c", (9,), (scores[2],), 3, ()))
    told.take(END)
    total = dataclasses.replace(TOTAL, **changes)
    told.take(Finished(Usage(3, 0, 3), SpeculationStats(total, {})))
    return told


def plain() -> Answer:
    return heard().answers[0]


def test_equal_answers_have_no_difference_also_behind_json() -> None:
    kept = Answer.from_json(json.loads(json.dumps(plain().as_json())))
    assert kept == plain()
    assert plain().difference(kept) is None
    assert broken_sums(heard()) is None


@pytest.mark.parametrize(
    ("part", "value", "told"),
    [
        ("token_ids", (7, 6, 9), "token 1: 6, not 8"),
        ("token_ids", (7, 8), "number of tokens: 2, not 3"),
        ("text", "abC", "text: 'abC', not 'abc'"),
        ("finish", "EOS_TOKEN", "finish reason: 'EOS_TOKEN', not 'MAX_TOKENS'"),
        ("matched", "2 None", "matched end"),
        ("seed", 6, "seed: 6, not 5"),
        ("num_prompt_tokens", 4, "prompt length: 4, not 3"),
        ("scores", (), "number of log probabilities: 0, not 3"),
    ],
)
def test_a_difference_in_any_part_is_told(part: str, value: Any, told: str) -> None:
    other = dataclasses.replace(plain(), **{part: value})
    assert str(other.difference(plain())).startswith(told)


def test_one_bit_of_one_log_probability_is_a_difference() -> None:
    other = Heard()
    other.take(STARTED)
    near = float.fromhex("-0x1.e00002p+2")  # the next number of 32 bits
    other.take(Delta(0, "", (7,), (scored(7, near),), 1, ()))
    assert other.answers[0].difference(plain()) == (
        "log probability 0: token 7 -7.50000048, rank 1, of 7 -7.50000048, 9 -3, "
        "not token 7 -7.5, rank 1, of 7 -7.5, 9 -3"
    )


def test_a_zero_is_not_a_negative_zero() -> None:
    answers = []
    for zero in (0.0, -0.0):
        one = Heard()
        one.take(STARTED)
        one.take(Delta(0, "", (7,), (scored(7, zero),), 1, ()))
        answers.append(one.answers[0])
    assert answers[0].difference(answers[1]) is not None


@pytest.mark.parametrize("change", ["logprob", "rank", "alternative"])
def test_ranks_and_alternatives_are_compared(change: str) -> None:
    one = scored(7, -7.5)
    parts: dict[str, Any] = {
        "logprob": {"logprob": -7.25},
        "rank": {"rank": 2},
        "alternative": {"alternatives": (Alternative(7, -7.5), Alternative(8, -3.0))},
    }
    other = Heard()
    other.take(STARTED)
    other.take(Delta(0, "", (7,), (dataclasses.replace(one, **parts[change]),), 1, ()))
    assert str(other.answers[0].difference(plain())).startswith("log probability 0")


def left(text: str, *token_ids: int) -> Answer:
    """A stream that was left after some tokens."""
    scores = tuple(plain().scores[: len(token_ids)])
    return Answer(5, 3, (), token_ids, text, scores)


@pytest.mark.parametrize("begun", [left(""), left("a", 7), left("ab\ufffd", 7, 8)])
def test_a_stream_that_was_left_is_compared_as_far_as_it_came(begun: Answer) -> None:
    assert begun.difference(plain()) is None


@pytest.mark.parametrize(
    "begun", [left("x", 7), left("a", 6), left("abcd", 7, 8, 9, 1), left("abcd", 7, 8, 9)]
)
def test_and_its_beginning_must_be_the_plain_one(begun: Answer) -> None:
    assert begun.difference(plain()) is not None


def test_a_delta_without_one_log_probability_for_each_token_is_an_error() -> None:
    told = Heard()
    told.take(STARTED)
    told.take(Delta(0, "ab", (7, 8), (scored(7, -1.0),), 2, ()))
    assert told.error == "a delta with 2 tokens and 1 log probabilities"


@pytest.mark.parametrize(
    "wrong",
    [
        {"accepted_length_histogram": (2, 1)},
        {"accepted_length_histogram": (2, 0)},
        {"draft_tokens": 0},
        {"verify_steps": 4, "accepted_length_histogram": (3, 1)},
        {"verify_steps": 1, "accepted_length_histogram": (0, 1)},
    ],
)
def test_sums_that_do_not_add_up_are_told(wrong: dict[str, Any]) -> None:
    assert str(broken_sums(heard(**wrong))).startswith("broken: ")


def test_usage_that_counts_other_tokens_is_told() -> None:
    told = heard()
    assert told.finished is not None
    usage = dataclasses.replace(told.finished.usage, completion_tokens=4)
    told.finished = dataclasses.replace(told.finished, usage=usage)
    assert broken_sums(told) is not None
