"""Promises of the contract's own values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafters.contract import BaseDrafter, DraftContext, Drafter, TokenView

TOKENS = st.lists(st.integers(0, 9), max_size=12)
BOUND = st.one_of(st.none(), st.integers(-15, 15))
STEP = st.one_of(st.none(), st.integers(-4, 4).filter(bool))


@given(TOKENS, TOKENS, BOUND, BOUND, STEP)
def test_a_view_slices_like_the_list_it_was_made_of_and_into_a_list(
    tokens: list[int], later: list[int], start: int | None, stop: int | None, step: int | None
) -> None:
    growing = list(tokens)
    view = TokenView(growing)
    growing.extend(later)
    got = view[start:stop:step]
    assert type(got) is list
    assert got == tokens[start:stop:step]


@given(TOKENS, TOKENS)
def test_a_view_keeps_its_length_and_content_while_the_list_grows(
    tokens: list[int], later: list[int]
) -> None:
    growing = list(tokens)
    view = TokenView(growing)
    growing.extend(later)
    assert len(view) == len(tokens)
    assert list(view) == tokens
    assert [view[i] for i in range(-len(tokens), len(tokens))] == tokens + tokens


@pytest.mark.parametrize("index", [3, -4, 100])
def test_an_index_outside_the_view_is_an_error_though_the_list_goes_on(index: int) -> None:
    growing = [1, 2, 3]
    view = TokenView(growing)
    growing.extend([4, 5])
    with pytest.raises(IndexError):
        view[index]


def test_a_view_equals_lists_tuples_and_views_of_the_same_tokens() -> None:
    view = TokenView([1, 2])
    assert view == [1, 2]
    assert [1, 2] == view
    assert view == (1, 2)
    assert view == TokenView((1, 2))
    assert view != [1, 2, 3]
    assert view != [2, 1]
    assert view != "12"


def test_a_slice_is_a_copy() -> None:
    tokens = [1, 2, 3]
    view = TokenView(tokens)
    view[:].append(9)
    assert tokens == [1, 2, 3]


def test_a_view_cannot_be_written() -> None:
    view = TokenView([1])
    with pytest.raises(TypeError):
        view[0] = 2  # type: ignore[index]


def test_the_base_drafter_is_a_drafter_that_proposes_nothing() -> None:
    drafter = BaseDrafter()
    assert isinstance(drafter, Drafter)
    rows = [DraftContext("a", [1]), DraftContext("b", [2])]
    assert drafter.propose(rows, [3, 3]) == [None, None]
