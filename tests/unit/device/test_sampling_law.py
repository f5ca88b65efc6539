"""One token follows exactly the law that its parameters describe.

Chi-square against exact probabilities in plain arithmetic. Every test has a false-alarm rate of
`FALSE_ALARM` and a planted fault that it must find. Several tokens, drafts and everything that
looks at the text: test_distribution.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from specd.device.sampling import sample
from specd.engine.params import SamplingParams
from tests.unit.device.statistics import FALSE_ALARM, chi_square
from tests.unit.device.toy_law import position_law

ROW = [1.5, 0.2, -0.7, 1.5, -3.0, 0.9, -math.inf, 0.0]
DRAWS = 4000
Law = Callable[[SamplingParams], list[float]]

COMBINATIONS = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 3},
    {"top_k": 6, "temperature": 1.7},
    {"top_p": 0.3},
    {"top_p": 0.8},
    {"min_p": 0.3},
    {"min_p": 0.3, "temperature": 2.0},
    {"top_k": 5, "top_p": 0.9},
    {"top_k": 5, "min_p": 0.2},
    {"top_p": 0.9, "min_p": 0.2},
    {"temperature": 1.4, "top_k": 6, "top_p": 0.95, "min_p": 0.1},
]


def counts_of(params: SamplingParams, along: str = "positions") -> list[int]:
    """How often each token comes, over consecutive positions or seeds."""
    row, counts = torch.tensor(ROW), [0] * len(ROW)
    for number in range(DRAWS):
        seed, position = (7, 1 + number) if along == "positions" else (number, 11)
        counts[int(sample(row, replace(params, seed=seed), position))] += 1
    return counts


@pytest.mark.parametrize("values", COMBINATIONS, ids=str)
@pytest.mark.parametrize("along", ["positions", "seeds"])
def test_draws_follow_the_exact_law(values: dict[str, float], along: str) -> None:
    params = SamplingParams(**values)  # type: ignore[arg-type]
    assert chi_square(counts_of(params, along), position_law(ROW, params)) > FALSE_ALARM


# --- what is nearly right is found ---


def kept_law(weights: Sequence[float]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


def weights_at(temperature: float) -> list[float]:
    return [math.exp((value - max(ROW)) / temperature) for value in ROW]


def truncated_before_the_temperature(params: SamplingParams) -> list[float]:
    kept = position_law(ROW, replace(params, temperature=1.0))
    weights = weights_at(params.temperature)
    return kept_law([w if share else 0.0 for w, share in zip(weights, kept, strict=True)])


def top_p_over_all_the_mass(params: SamplingParams) -> list[float]:
    """Of what top_k removed, too."""
    kept = [position_law(ROW, replace(params, **off)) for off in ({"top_k": 0}, {"top_p": 1.0})]
    weights = zip(weights_at(params.temperature), *kept, strict=True)
    return kept_law([weight if a and b else 0.0 for weight, a, b in weights])


def ties_broken(params: SamplingParams) -> list[float]:
    """top_k keeps k tokens, though the next is as probable."""
    order = sorted(range(len(ROW)), key=lambda token: (-ROW[token], token))[: params.top_k]
    weights = weights_at(params.temperature)
    return kept_law([w if token in order else 0.0 for token, w in enumerate(weights)])


def temperature_off_by_a_fifth(params: SamplingParams) -> list[float]:
    return position_law(ROW, replace(params, temperature=params.temperature * 6 / 5))


WRONG_LAWS: list[tuple[Law, SamplingParams]] = [
    (temperature_off_by_a_fifth, SamplingParams()),
    (truncated_before_the_temperature, SamplingParams(temperature=2.0, min_p=0.4)),
    (truncated_before_the_temperature, SamplingParams(temperature=2.5, top_p=0.8)),
    (top_p_over_all_the_mass, SamplingParams(top_k=3, top_p=0.7)),
    (ties_broken, SamplingParams(top_k=1)),
]


@pytest.mark.parametrize(("wrong", "params"), WRONG_LAWS)
def test_a_law_that_is_nearly_the_right_one_is_found(wrong: Law, params: SamplingParams) -> None:
    counts = counts_of(params)
    assert chi_square(counts, position_law(ROW, params)) > FALSE_ALARM
    assert chi_square(counts, wrong(params)) < FALSE_ALARM
