"""Promises of the counts that penalties look at: exact, and without a copy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specd.engine.step_types import SeenTokens
from specd.engine.token_counts import TokenCounts

TOKENS = st.lists(st.integers(0, 300), max_size=200)


def check(seen: SeenTokens, prompt: Sequence[int], answer: Sequence[int]) -> None:
    ids = seen.ids.tolist()
    assert ids == list(dict.fromkeys([*prompt, *answer]))
    assert seen.in_prompt.tolist() == [token in prompt for token in ids]
    assert seen.counts.tolist() == [Counter(answer)[token] for token in ids]
    assert dict(seen.places) == {token: place for place, token in enumerate(ids)}
    types = [str(array.dtype) for array in (seen.ids, seen.in_prompt, seen.counts)]
    assert types == ["int64", "bool", "int32"]


@settings(deadline=None)
@example(prompt=[7], runs=[[*range(300)], [7, 250]])
@given(prompt=TOKENS, runs=st.lists(TOKENS, max_size=5))
def test_a_view_says_what_prompt_and_answer_hold(prompt: list[int], runs: list[list[int]]) -> None:
    counts = TokenCounts(prompt)
    check(counts.view(), prompt, [])
    answer: list[int] = []
    for run in runs:
        counts.append(run)
        answer += run
        check(counts.view(), prompt, answer)


def test_views_of_a_text_are_no_copies_of_it() -> None:
    counts = TokenCounts(range(1000))
    first = counts.view()
    counts.append([5, 5000])
    second = counts.view()
    assert np.shares_memory(first.ids, second.ids)
    assert np.shares_memory(first.in_prompt, second.in_prompt)
    assert np.shares_memory(first.counts, second.counts)
    assert first.places is second.places
    assert (len(first.ids), len(second.ids)) == (1000, 1001)
