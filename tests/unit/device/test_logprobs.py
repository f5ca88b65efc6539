"""Log probabilities: the right number, the right rank, the right order, whatever the row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specd.device.logprobs import most_probable, token_logprob


def row_of(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


# Few levels, so that ties are common; -inf is what a ban leaves.
rows = st.lists(
    st.one_of(st.floats(-30, 30, width=32), st.sampled_from([0.0, -0.0, 1.0, 2.0, -math.inf])),
    min_size=1,
    max_size=70,
).filter(lambda values: max(values) > -math.inf)


@settings(max_examples=300, deadline=None)
@given(values=rows, token=st.integers(0, 69), top=st.integers(0, 75))
def test_a_token_has_its_probability_its_rank_and_the_best_beside_it(
    values: list[float], token: int, top: int
) -> None:
    token %= len(values)
    found = token_logprob(row_of(values), token, top)
    total = math.log(math.fsum(math.exp(value - max(values)) for value in values)) + max(values)
    assert found.token_id == token
    assert found.logprob == pytest.approx(values[token] - total, abs=2e-5)
    assert found.rank == 1 + sum(value > values[token] for value in values)
    order = sorted(range(len(values)), key=lambda other: (-values[other], other))
    possible = [other for other in order if values[other] > -math.inf]
    assert [other for other, _ in found.alternatives] == possible[:top]
    logprobs = [value for _, value in found.alternatives]
    assert logprobs == sorted(logprobs, reverse=True)
    for other, value in found.alternatives:
        assert value == pytest.approx(values[other] - total, abs=2e-5)


@pytest.mark.parametrize("vocab", [1, 8193, 49152, 151936])
@pytest.mark.parametrize("levels", [1, 2, 1000])
def test_the_best_of_a_large_vocabulary_are_those_of_a_stable_sort(vocab: int, levels: int) -> None:
    generator = np.random.default_rng(vocab)
    values = generator.integers(0, levels, vocab).astype(np.float32)
    slow = np.argsort(-values, kind="stable")
    for count in (0, 1, 2, 20, vocab):
        assert np.array_equal(most_probable(values, count), slow[:count])


def test_more_alternatives_than_tokens_are_all_tokens() -> None:
    assert len(token_logprob(row_of([1.0, 2.0, -math.inf]), 0, 20).alternatives) == 2


def test_no_alternatives_is_a_value_too() -> None:
    found = token_logprob(row_of([0.0, 0.0]), 1, 0)
    assert found.logprob == pytest.approx(-math.log(2))
    assert (found.rank, found.alternatives) == (1, ())


def test_an_impossible_token_has_no_probability_and_the_last_rank() -> None:
    found = token_logprob(row_of([0.0, -math.inf, 1.0, -math.inf]), 1, 4)
    assert (found.logprob, found.rank) == (-math.inf, 3)


def test_the_largest_logit_comes_first_even_where_fp32_rounds_the_difference_away() -> None:
    """Greedy decoding takes token 1; a flat row gives both the same log probability."""
    row = torch.full((49152,), -1e-3)
    row[0], row[1] = 1e-9, 2e-9
    found = token_logprob(row, 1, 2)
    assert found.rank == 1 and found.alternatives == ((1, found.logprob), (0, found.logprob))


def test_the_alternatives_of_the_chosen_token_hold_its_own_number() -> None:
    row = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    for token in row.topk(20).indices.tolist():
        found = token_logprob(row, token, 20)
        assert found.rank is not None
        assert found.alternatives[found.rank - 1] == (token, found.logprob)


def test_the_row_is_only_read() -> None:
    row = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    before = row.clone()
    token_logprob(row, 5, 20)
    assert torch.equal(row, before)
