"""Promises of prompt lookup."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafters.contract import DraftContext, SamplingHint
from drafters.ngram import NgramDrafter, NgramIndex

GREEDY = SamplingHint(temperature=0.0, seed=0)


def drafts(
    prompt: Sequence[int],
    output: Sequence[int],
    budget: int = 8,
    drafter: NgramDrafter | None = None,
) -> list[int] | None:
    """The draft for a request of its own with this text."""
    drafter = drafter or NgramDrafter()
    drafter.begin("r", prompt, GREEDY)
    for token in output:
        drafter.observe("r", [token], 0)
    (answer,) = drafter.propose([DraftContext("r", [*prompt, *output])], [budget])
    drafter.end("r", "finished")
    return answer


def search(text: Sequence[int], budget: int, max_ngram: int, min_ngram: int) -> list[int]:
    """Prompt lookup by its definition, in quadratic time."""
    text = list(text)
    for n in range(max_ngram, min_ngram - 1, -1):
        if len(text) < n:
            continue
        for start in range(len(text) - n - 1, -1, -1):
            if text[start : start + n] == text[-n:]:
                for _ in range(budget):
                    text.append(text[start + n])
                    start += 1
                return text[-budget:]
    return []


def test_it_proposes_what_followed_in_the_prompt() -> None:
    assert drafts([1, 2, 3, 4, 5, 6], [9, 2, 3], budget=3) == [4, 5, 6]


def test_it_proposes_what_followed_in_the_output() -> None:
    assert drafts([7], [1, 2, 3, 4, 9, 1, 2], budget=2) == [3, 4]


def test_an_occurrence_may_span_prompt_and_output() -> None:
    assert drafts([7, 1], [2, 5, 6, 1, 2], budget=2) == [5, 6]


def test_a_longer_match_wins_over_a_later_one() -> None:
    assert drafts([1, 2, 3, 50, 9, 2, 3, 60], [1, 2, 3], budget=1) == [50]


def test_among_equal_matches_the_latest_wins() -> None:
    assert drafts([1, 2, 50, 9, 1, 2, 60, 8], [1, 2], budget=1) == [60]


def test_a_single_token_that_repeats_is_no_match() -> None:
    assert drafts([1, 2, 3, 4], [9, 2], budget=4) == []


def test_text_with_a_period_is_drafted_at_full_length() -> None:
    assert drafts([1, 2, 3, 1, 2, 3], [1, 2], budget=10) == [3, 1, 2, 3, 1, 2, 3, 1, 2, 3]


def test_a_run_of_one_token_is_drafted_at_full_length() -> None:
    assert drafts([5, 5], [5], budget=7) == [5] * 7


def test_token_zero_is_a_token_like_any_other() -> None:
    assert drafts([0, 0, 7, 3], [0, 0], budget=2) == [7, 3]
    assert drafts([0], [0], budget=2) == []


@pytest.mark.parametrize("text", [[1], [1, 2], [1, 2, 3]])
def test_a_text_without_repetition_gets_no_draft(text: list[int]) -> None:
    assert drafts(text[:1], text[1:]) == []


def test_it_never_proposes_for_a_request_that_it_does_not_know() -> None:
    drafter = NgramDrafter()
    drafter.begin("known", [1, 2, 1, 2], GREEDY)
    drafter.observe("stranger", [1, 2, 1, 2], 0)
    assert drafter.propose([DraftContext("stranger", [1, 2, 1, 2])], [4]) == [None]


def test_end_forgets_everything() -> None:
    drafter = NgramDrafter()
    drafter.begin("a", [1, 2, 1, 2], GREEDY)
    drafter.end("a", "finished")
    drafter.end("a", "finished")
    assert drafter.num_requests == 0
    assert drafter.propose([DraftContext("a", [1, 2, 1, 2])], [4]) == [None]


def test_a_request_that_takes_an_old_id_starts_from_nothing() -> None:
    drafter = NgramDrafter()
    assert drafts([1, 2, 3, 4], [1, 2], drafter=drafter) == [3, 4, 1, 2, 3, 4, 1, 2]
    assert drafts([8, 9], [1, 2], drafter=drafter) == []


def test_requests_share_nothing_whatever_ran_before_or_runs_beside() -> None:
    rng = random.Random(5)
    prompt = [rng.randrange(6) for _ in range(60)]
    alone = drafts(prompt, [1, 2])
    crowded = NgramDrafter()
    for number in range(10):
        crowded.begin(f"other{number}", [rng.randrange(6) for _ in range(200)], GREEDY)
        assert drafts(prompt, [1, 2], drafter=crowded) == alone


def test_rows_are_answered_in_order_with_their_own_budgets() -> None:
    drafter = NgramDrafter()
    drafter.begin("a", [1, 2, 1, 2], GREEDY)
    drafter.begin("b", [7, 7, 7], GREEDY)
    rows = [DraftContext("b", [7] * 3), DraftContext("a", [1, 2] * 2), DraftContext("b", [7] * 3)]
    assert drafter.propose(rows, [2, 3, 1]) == [[7, 7], [1, 2, 1], [7]]


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.integers(0, 60),
    st.integers(1, 12),
    st.integers(1, 6),
    st.integers(1, 3),
)
def test_it_finds_what_a_search_of_the_whole_text_finds(
    text: list[int], cut: int, budget: int, max_ngram: int, min_ngram: int
) -> None:
    drafter = NgramDrafter(max(max_ngram, min_ngram), min_ngram)
    found = drafts(text[:cut], text[cut:], budget, drafter)
    assert found == search(text, budget, max(max_ngram, min_ngram), min_ngram)


def test_the_tables_stop_growing_at_twice_the_window() -> None:
    index = NgramIndex(max_ngram=4, min_ngram=2, window=100)
    rng = random.Random(1)
    sizes = []
    for _ in range(1_000):
        index.extend([rng.randrange(1_000)])
        sizes.append(index.num_entries)
    assert max(sizes) <= 2 * 100 * 3


def test_an_occurrence_within_the_window_is_found_across_generations() -> None:
    index = NgramIndex(max_ngram=3, min_ngram=2, window=10)
    index.extend([100, 101, 102, *range(9), 100, 101])
    assert index.continuation(2) == [102, 0]


def test_an_occurrence_beyond_twice_the_window_is_forgotten() -> None:
    index = NgramIndex(max_ngram=3, min_ngram=2, window=10)
    index.extend([100, 101, 102, *range(30), 100, 101])
    assert index.continuation(2) == []


@pytest.mark.parametrize("arguments", [(2, 3), (4, 0), (6, 2, 0)])
def test_senseless_sizes_are_refused(arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must"):
        NgramDrafter(*arguments)
