"""Promises of the output room: where a generation ends, and which text it has then."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.toy_gguf import byte_characters, tokenizer_metadata, toy_vocabulary
from specd.engine.events import FinishReason
from specd.engine.output import Ending, Output
from specd.engine.params import OutputParams, StopParams
from specd.text.tokenizer import Tokenizer
from tests.support.requests import EOS_ID, VOCAB_SIZE, toy_tokenizer

A, B, C, D, SPACE = 97, 98, 99, 100, 32
SMILE = list("🙂".encode())
HALF = "\ufffd"
SETTINGS = settings(deadline=None, derandomize=True, max_examples=150)


def make_output(
    *,
    context_left: int = 50,
    skip_special: bool = True,
    stop_token_ids: Collection[int] = (),
    **stop: Any,
) -> Output:
    params = StopParams(stop_token_ids=frozenset(stop_token_ids), **stop)
    output = OutputParams(skip_special_tokens=skip_special)
    return Output(toy_tokenizer(), params, output, context_left=context_left)


@dataclass(frozen=True)
class Outcome:
    token_ids: list[int]
    text: str
    ending: Ending | None

    @property
    def reason(self) -> FinishReason | None:
        return None if self.ending is None else self.ending.reason


def run(output: Output, token_ids: Sequence[int], sizes: Sequence[int] = ()) -> Outcome:
    """Push tokens as the loop does, taking the text behind each run of `sizes`, then of one."""
    taken, pushed = [], []
    left = list(sizes)
    ending = None
    for token in token_ids:
        pushed.append(token)
        ending = output.push(token)
        if left:
            left[0] -= 1
        if ending is not None or not left or left[0] == 0:
            taken.append(output.take_text())
            left = left[1:]
        if ending is not None:
            break
    taken.append(output.take_text())
    return Outcome(pushed, "".join(taken), ending)


def test_eos_ends_and_counts_and_has_no_text() -> None:
    outcome = run(make_output(), [A, EOS_ID, B])
    assert outcome == Outcome([A, EOS_ID], "a", Ending(FinishReason.EOS_TOKEN, EOS_ID))


def test_with_ignore_eos_the_token_is_one_like_any_other() -> None:
    outcome = run(make_output(ignore_eos=True, skip_special=False), [A, EOS_ID, B])
    assert outcome == Outcome([A, EOS_ID, B], "a<|im_end|>b", None)


def test_an_eos_that_is_ignored_still_ends_as_a_stop_token() -> None:
    outcome = run(make_output(ignore_eos=True, stop_token_ids={EOS_ID}), [A, EOS_ID])
    assert outcome.ending == Ending(FinishReason.STOP_TOKEN, EOS_ID)


def test_a_stop_token_ends_before_its_text() -> None:
    outcome = run(make_output(stop_token_ids={B}), [A, B, C])
    assert outcome == Outcome([A, B], "a", Ending(FinishReason.STOP_TOKEN, B))


def test_a_stop_token_shows_its_text_where_the_stop_is_included() -> None:
    outcome = run(make_output(stop_token_ids={B}, include_stop_string=True), [A, B, C])
    assert outcome.text == "ab"


def test_eos_comes_before_a_stop_token_of_the_same_id() -> None:
    assert run(make_output(stop_token_ids={EOS_ID}), [EOS_ID]).reason is FinishReason.EOS_TOKEN


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_comes_before_a_stop_string_that_it_completes(include: bool) -> None:
    output = make_output(stop_token_ids={B}, stop_strings=("ab",), include_stop_string=include)
    outcome = run(output, [SPACE, A, B, C])
    assert outcome.ending == Ending(FinishReason.STOP_TOKEN, B)
    assert outcome.text == (" ab" if include else " a")


def test_an_included_stop_token_shows_all_of_its_text_whatever_stop_string_is_in_it() -> None:
    word = toy_tokenizer().encode(" the", parse_special=False, add_special=False)
    assert len(word) == 1
    output = make_output(stop_token_ids=word, stop_strings=("t",), include_stop_string=True)
    assert run(output, [A, *word]).text == "a the"


def test_half_a_character_behind_a_stop_string_is_not_shown() -> None:
    vocabulary = toy_vocabulary(1500)
    filler = vocabulary.id_of("<|unused_0|>")
    vocabulary.tokens[filler] = byte_characters()[B] + byte_characters()[SMILE[0]]
    tokenizer = Tokenizer.from_gguf(tokenizer_metadata(vocabulary))
    stop = StopParams(stop_strings=("ab",), include_stop_string=True)
    outcome = run(Output(tokenizer, stop, OutputParams(), context_left=9), [A, filler])
    assert outcome.text == "ab"


def test_an_included_eos_may_complete_a_stop_string_and_is_still_the_reason() -> None:
    output = make_output(skip_special=False, stop_strings=("<|im_end|>",), include_stop_string=True)
    outcome = run(output, [A, EOS_ID])
    assert outcome.ending == Ending(FinishReason.EOS_TOKEN, EOS_ID)
    assert outcome.text == "a<|im_end|>"


@pytest.mark.parametrize(("include", "text"), [(False, " "), (True, " abc")])
def test_a_stop_string_over_several_tokens_ends_before_or_behind_it(
    include: bool, text: str
) -> None:
    outcome = run(
        make_output(stop_strings=("abc",), include_stop_string=include), [SPACE, A, B, C, D]
    )
    assert outcome.token_ids == [SPACE, A, B, C]
    assert outcome.text == text
    assert outcome.ending == Ending(FinishReason.STOP_STRING, matched_string="abc")


def test_of_two_stop_strings_in_one_run_the_earliest_wins() -> None:
    outcome = run(make_output(stop_strings=("cd", "bc")), [A, B, C, D], sizes=[4])
    assert outcome == Outcome([A, B, C], "a", Ending(FinishReason.STOP_STRING, None, "bc"))


def test_a_stop_that_arrives_with_the_last_allowed_token_is_the_reason() -> None:
    assert run(make_output(max_new_tokens=2), [A, EOS_ID]).reason is FinishReason.EOS_TOKEN
    by_token = make_output(max_new_tokens=2, stop_token_ids={B})
    assert run(by_token, [A, B]).reason is FinishReason.STOP_TOKEN
    by_string = make_output(max_new_tokens=2, stop_strings=("ab",))
    assert run(by_string, [A, B]).reason is FinishReason.STOP_STRING


def test_a_stop_one_token_beyond_the_budget_is_never_seen() -> None:
    outcome = run(make_output(max_new_tokens=2, stop_token_ids={C}), [A, B, C], sizes=[3])
    assert outcome == Outcome([A, B], "ab", Ending(FinishReason.MAX_TOKENS))


@pytest.mark.parametrize(("minimum", "ends_at"), [(0, 2), (1, 2), (2, 4), (3, 4), (4, None)])
def test_a_stop_string_counts_where_its_last_token_is_beyond_the_first_min_new_tokens(
    minimum: int, ends_at: int | None
) -> None:
    output = make_output(stop_strings=("ab",), min_new_tokens=minimum)
    outcome = run(output, [A, B, A, B, C])
    assert len(outcome.token_ids) == (ends_at or 5)
    assert outcome.text == ("abab" + "c" if ends_at is None else "abab"[: ends_at - 2])


def test_a_stop_string_may_begin_inside_one_that_came_too_early_to_count() -> None:
    output = make_output(stop_strings=("aa",), min_new_tokens=2, include_stop_string=True)
    assert run(output, [A, A, A, A]) == Outcome(
        [A, A, A], "aaa", Ending(FinishReason.STOP_STRING, None, "aa")
    )


def test_what_cannot_be_chosen_before_min_new_tokens_is_what_ends_a_generation() -> None:
    ends = sorted(toy_tokenizer().eos_ids)
    output = make_output(min_new_tokens=3, stop_token_ids={B, ends[0]})
    assert output.ending_ids() == (B, *ends)
    assert output.num_endless == 3
    run(output, [A, A])
    assert output.num_endless == 1
    run(output, [A, A])
    assert output.num_endless == 0


def test_with_ignore_eos_end_tokens_can_be_chosen_at_once_unless_they_are_stop_tokens() -> None:
    assert make_output(ignore_eos=True, min_new_tokens=3).ending_ids() == ()
    output = make_output(ignore_eos=True, min_new_tokens=3, stop_token_ids={EOS_ID})
    assert output.ending_ids() == (EOS_ID,)
    assert run(make_output(ignore_eos=True, min_new_tokens=3), [A, EOS_ID, B]).ending is None


def test_min_new_tokens_does_not_hold_up_the_length_limits() -> None:
    outcome = run(make_output(context_left=2, min_new_tokens=9), [A, B, C])
    assert outcome == Outcome([A, B], "ab", Ending(FinishReason.CONTEXT_LENGTH))


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 9])
def test_exactly_max_new_tokens_come_out(limit: int) -> None:
    output = make_output(max_new_tokens=limit)
    outcome = run(output, [A] * 20, sizes=[8, 8, 8])
    assert outcome == Outcome([A] * limit, "a" * limit, Ending(FinishReason.MAX_TOKENS))
    assert (output.num_tokens, output.tokens_left) == (limit, 0)


@pytest.mark.parametrize(
    ("max_new_tokens", "reason"),
    [
        (None, FinishReason.CONTEXT_LENGTH),
        (4, FinishReason.CONTEXT_LENGTH),
        (3, FinishReason.MAX_TOKENS),
    ],
)
def test_the_context_limits_where_max_new_tokens_does_not(
    max_new_tokens: int | None, reason: FinishReason
) -> None:
    outcome = run(make_output(context_left=3, max_new_tokens=max_new_tokens), [A] * 9)
    assert outcome.token_ids == [A] * 3
    assert outcome.reason is reason


def test_what_was_held_for_a_stop_string_is_shown_when_the_length_ends_it() -> None:
    assert run(make_output(max_new_tokens=2, stop_strings=("abc",)), [A, B]).text == "ab"


def test_what_was_held_for_a_stop_string_is_shown_when_eos_ends_it() -> None:
    assert run(make_output(stop_strings=("abc",)), [A, B, EOS_ID]).text == "ab"


def test_text_that_cannot_become_a_stop_string_is_not_held_back() -> None:
    output = make_output(stop_strings=("x" * 200,))
    output.push(A)
    assert output.take_text() == "a"


@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_half_a_character_at_the_end_is_one_replacement_character(num_bytes: int) -> None:
    outcome = run(make_output(max_new_tokens=num_bytes), SMILE)
    assert outcome.text == HALF
    outcome.text.encode()


def test_half_a_character_is_not_shown_before_the_end() -> None:
    output = make_output()
    shown = []
    for token in SMILE:
        output.push(token)
        shown.append(output.take_text())
    assert shown == ["", "", "", "🙂"]


def test_half_a_character_behind_held_text_keeps_the_order() -> None:
    outcome = run(make_output(max_new_tokens=3, stop_strings=("abc",)), [A, B, SMILE[0]])
    assert outcome.text == "ab" + HALF


def test_a_replacement_character_made_at_the_end_is_not_lost_to_a_stop_string() -> None:
    outcome = run(make_output(max_new_tokens=2, stop_strings=(HALF,)), [A, SMILE[0]])
    assert outcome == Outcome([A, SMILE[0]], "a" + HALF, Ending(FinishReason.MAX_TOKENS))


def test_flushing_in_the_middle_shows_all_that_is_held() -> None:
    output = make_output(stop_strings=("abc",))
    output.push(A)
    assert output.take_text() == ""
    output.flush()
    assert output.take_text() == "a"


IDS = st.lists(
    st.one_of(
        st.sampled_from([A, B, C, *SMILE, EOS_ID]),
        st.integers(0, VOCAB_SIZE - 1),
    ),
    max_size=25,
)


@SETTINGS
@given(
    ids=IDS,
    sizes=st.lists(st.integers(1, 9), max_size=25),
    stop_strings=st.lists(st.sampled_from(["ab", "bca", "c🙂", HALF, "<|im_end|>"]), max_size=3),
    stop_token_ids=st.sets(st.sampled_from([A, C, EOS_ID, 226]), max_size=1),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    max_new_tokens=st.one_of(st.none(), st.integers(1, 25)),
    min_new_tokens=st.integers(0, 9),
)
def test_the_grouping_into_runs_changes_nothing(
    ids: list[int],
    sizes: list[int],
    stop_strings: list[str],
    stop_token_ids: set[int],
    flags: tuple[bool, bool, bool],
    max_new_tokens: int | None,
    min_new_tokens: int,
) -> None:
    def fresh() -> Output:
        return make_output(
            stop_strings=tuple(stop_strings),
            stop_token_ids=stop_token_ids,
            ignore_eos=flags[0],
            include_stop_string=flags[1],
            skip_special=flags[2],
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
        )

    assert run(fresh(), ids, sizes) == run(fresh(), ids)


@SETTINGS
@given(ids=IDS, limit=st.integers(1, 25), skip_special=st.booleans())
def test_without_stops_the_text_is_the_decoded_ids(
    ids: list[int], limit: int, skip_special: bool
) -> None:
    ids = [token for token in ids if token not in toy_tokenizer().eos_ids] + [A] * 25
    outcome = run(make_output(max_new_tokens=limit, skip_special=skip_special), ids, [4] * 9)
    assert outcome.token_ids == ids[:limit]
    assert outcome.text == toy_tokenizer().decode(ids[:limit], skip_special=skip_special)


@SETTINGS
@given(ids=IDS, stop=st.sampled_from(["ab", "a", "bc🙂", " "]), include=st.booleans())
def test_text_and_ids_agree_where_a_stop_string_ends_it(
    ids: list[int], stop: str, include: bool
) -> None:
    outcome = run(make_output(stop_strings=(stop,), include_stop_string=include), ids)
    if outcome.reason is not FinishReason.STOP_STRING:
        return
    whole = toy_tokenizer().decode(outcome.token_ids, skip_special=True)
    before = whole.index(stop)
    assert outcome.text == whole[: before + len(stop) if include else before]
