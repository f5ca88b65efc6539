"""Sampling: every parameter does what its name says, whatever the logits look like."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from specd.device.noise import gumbel, key_tensor
from specd.device.sampling import nucleus_threshold, sample, truncate
from specd.engine.params import SamplingParams
from specd.engine.seeds import key_words


def logits(size: int = 200, seed: int = 0, spread: float = 3.0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * spread


def kept(scores: Tensor, **params: float) -> list[int]:
    """Ids that the truncations leave."""
    truncated = truncate(scores - scores.max(), SamplingParams(**params))  # type: ignore[arg-type]
    return torch.isfinite(truncated).nonzero().flatten().tolist()


def draws(row: Tensor, count: int, params: SamplingParams) -> list[int]:
    return [int(sample(row, params, position)) for position in range(1, 1 + count)]


def test_a_sample_is_the_argmax_of_scaled_logits_and_published_noise() -> None:
    row = logits()
    for position in range(1, 50):
        for temperature in (0.3, 1.0, 2.5):
            params = SamplingParams(temperature=temperature, seed=77)
            noise = gumbel(key_tensor([key_words(77, position)]), 200)[0].double()
            wanted = (row.double() / temperature + noise).argmax()
            assert int(sample(row, params, position)) == int(wanted)


def test_equal_seeds_repeat_and_others_differ() -> None:
    row = logits(spread=1.0)
    first, again, other = (
        draws(row, 64, SamplingParams(temperature=1.2, seed=seed)) for seed in (5, 5, 6)
    )
    assert first == again != other


def test_a_draw_does_not_depend_on_what_was_drawn_before() -> None:
    row, params = logits(spread=1.0), SamplingParams(seed=1)
    fresh = int(sample(row, params, 40))
    draws(row, 100, SamplingParams(seed=9))
    assert int(sample(row, params, 40)) == fresh


def test_sampling_leaves_its_logits_alone() -> None:
    row = logits()
    before = row.clone()
    sample(row, SamplingParams(temperature=0.7, top_k=9, top_p=0.5, min_p=0.1, seed=3), 2)
    assert torch.equal(row, before)


@pytest.mark.parametrize("temperature", [0.0, 1e-40, 1e-12, 9e-7])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    row = logits()
    row[[7, 9, 150]] = row.max() + 1e-3  # ties too go as greedy decides
    assert set(draws(row, 50, SamplingParams(temperature=temperature, seed=4))) == {7}


@pytest.mark.parametrize("temperature", [1e-6, 1e-5, 1e-3])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e30])
def test_a_small_temperature_gives_legal_tokens_at_any_scale_of_logits(
    temperature: float, scale: float
) -> None:
    row = logits() * scale
    found = draws(row, 50, SamplingParams(temperature=temperature, top_p=0.9, min_p=0.1, seed=4))
    assert all(0 <= token < 200 for token in found)
    if scale >= 1:
        assert set(found) == {int(row.argmax())}


def test_a_huge_temperature_reaches_the_whole_vocabulary() -> None:
    found = draws(logits(size=20), 2000, SamplingParams(temperature=1e30, seed=4))
    assert set(found) == set(range(20))


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    for size in (5, 300, 8193, 49152, 151936):
        for places in ((0, size - 1), (size // 2, size // 2 + 1), (1, 3, size - 2)):
            row = torch.zeros(size)
            row[list(places)] = 5.0
            assert int(sample(row, SamplingParams(temperature=0), 1)) == min(places)
            assert int(row[None].expand(2, -1).argmax(1)[0]) == min(places)


@pytest.mark.parametrize("top_k", [-1, 0, 200, 201, (1 << 31) - 1])
def test_a_top_k_of_nothing_or_everything_changes_no_token(top_k: int) -> None:
    row = logits()
    plain = draws(row, 100, SamplingParams(seed=8))
    assert draws(row, 100, SamplingParams(top_k=top_k, seed=8)) == plain


def test_top_k_keeps_the_largest_and_all_that_tie_with_the_last() -> None:
    scores = torch.tensor([1.0, 5.0, 3.0, 3.0, 3.0, 4.0, 0.0])
    assert kept(scores, top_k=1) == [1]
    assert kept(scores, top_k=2) == [1, 5]
    assert kept(scores, top_k=3) == [1, 2, 3, 4, 5] == kept(scores, top_k=5)
    assert kept(scores, top_k=6) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("seed", range(5))
def test_top_k_of_one_is_greedy_at_any_temperature(seed: int) -> None:
    row = logits(seed=seed)
    found = draws(row, 30, SamplingParams(temperature=2.0, top_k=1, seed=seed))
    assert set(found) == {int(row.argmax())}


def test_top_p_keeps_the_smallest_head_with_the_mass() -> None:
    scores = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    assert kept(scores, top_p=0.05) == [1]
    assert kept(scores, top_p=0.39) == [1]
    assert kept(scores, top_p=0.41) == [1, 3]
    assert kept(scores, top_p=0.71) == [1, 2, 3]
    assert kept(scores, top_p=0.91) == [0, 1, 2, 3]


def test_top_p_keeps_all_that_tie_with_its_last() -> None:
    scores = torch.tensor([0.2, 0.4, 0.2, 0.2]).log()
    assert kept(scores, top_p=0.5) == [0, 1, 2, 3]


def test_top_p_measures_what_top_k_kept() -> None:
    scores = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    # Of all the mass 0.4 is less than a half; of the two largest it is 0.57.
    assert kept(scores, top_p=0.5) == [1, 3]
    assert kept(scores, top_k=2, top_p=0.5) == [1]


def test_min_p_is_a_share_of_the_largest_probability() -> None:
    scores = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    assert kept(scores, min_p=0.74) == [1, 3]
    assert kept(scores, min_p=0.76) == [1]
    assert kept(scores, min_p=1.0) == [1]
    assert kept(scores, min_p=0.2) == [0, 1, 2, 3]


def test_impossible_tokens_stay_impossible() -> None:
    row = logits(size=40)
    row[::2] = -math.inf
    for params in (
        SamplingParams(temperature=0),
        SamplingParams(temperature=50.0, seed=1),
        SamplingParams(temperature=50.0, top_k=30, seed=1),
        SamplingParams(temperature=50.0, top_p=0.9999999, seed=1),
        SamplingParams(temperature=50.0, min_p=1e-30, seed=1),
    ):
        assert all(token % 2 for token in draws(row, 300, params))


def test_one_possible_token_is_always_drawn() -> None:
    row = torch.full((50,), -math.inf)
    row[31] = -4.0
    for params in (SamplingParams(seed=2), SamplingParams(top_k=5, top_p=0.5, min_p=0.5, seed=2)):
        assert set(draws(row, 50, params)) == {31}


# --- vocabularies that are no multiple of any tile (a07) ---


@pytest.mark.parametrize("vocab", [1, 3, 300, 8193, 10000])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_k=1, seed=3),
        SamplingParams(temperature=1.0, seed=3),
        SamplingParams(temperature=5.0, top_k=50, top_p=0.99, min_p=1e-4, seed=3),
    ],
)
def test_every_drawn_id_is_inside_the_vocabulary(vocab: int, params: SamplingParams) -> None:
    for row in (torch.full((vocab,), -3.0), torch.zeros(vocab), logits(vocab)):
        assert all(0 <= token < vocab for token in draws(row, 60, params))


@pytest.mark.parametrize("vocab", [8193, 10000])
def test_the_last_ids_of_an_odd_vocabulary_can_be_drawn(vocab: int) -> None:
    row = torch.full((vocab,), -50.0)
    row[-3:] = 0.0
    found = set(draws(row, 200, SamplingParams(seed=3)))
    assert found == {vocab - 3, vocab - 2, vocab - 1}


# --- the fast nucleus equals the slow one ---


def slow_nucleus(probabilities: Tensor, top_p: float) -> set[int]:
    """Sort everything; the kept set is what ties with the last of the smallest prefix."""
    ordered = probabilities.sort(descending=True).values
    mass = ordered.cumsum(0)
    reached = (mass >= top_p).nonzero().flatten()
    last = ordered[int(reached[0]) if len(reached) else -1]
    return set((probabilities >= last).nonzero().flatten().tolist())


@settings(max_examples=200, deadline=None)
@given(
    size=st.sampled_from([1, 2, 63, 64, 65, 1023, 1024, 1025, 3000]),
    levels=st.integers(1, 6),
    spread=st.sampled_from([0.0, 0.05, 1.0, 10.0]),
    top_p=st.one_of(
        st.sampled_from([1e-9, 0.5, 0.999999, 1 - 2**-24]), st.floats(1e-3, 1, exclude_max=True)
    ),
    seed=st.integers(0, 1000),
)
@example(size=3000, levels=1, spread=0.0, top_p=64 / 3000, seed=0)
@example(size=3000, levels=1, spread=0.0, top_p=1 - 2**-24, seed=0)
def test_the_fast_nucleus_is_the_sorted_one_even_with_many_ties(
    size: int, levels: int, spread: float, top_p: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, levels, (size,), generator=generator) * spread
    probabilities = torch.softmax(scores - scores.max(), -1)
    found = (probabilities >= nucleus_threshold(probabilities, top_p)).nonzero().flatten()
    assert set(found.tolist()) == slow_nucleus(probabilities, top_p)


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.99, 0.99999])
def test_the_fast_nucleus_of_a_large_vocabulary_is_the_sorted_one(top_p: float) -> None:
    for spread in (0.1, 1.0, 4.0):
        probabilities = torch.softmax(logits(151936, seed=2, spread=spread), -1)
        found = (probabilities >= nucleus_threshold(probabilities, top_p)).nonzero().flatten()
        assert set(found.tolist()) == slow_nucleus(probabilities, top_p)
