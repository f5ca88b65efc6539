"""Sampling follows exactly the law that its parameters describe, speculation included.

Chi-square against exact probabilities, computed in plain arithmetic. Every test has a false-alarm
rate of `FALSE_ALARM` and a planted fault that it must find.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from specd.device.sampling import sample
from specd.device.verifier import verify
from specd.engine.params import SamplingParams
from tests.unit.device.batches import one_row_batch
from tests.unit.device.statistics import FALSE_ALARM, chi_square

ROW = [1.5, 0.2, -0.7, 1.5, -3.0, 0.9, -math.inf, 0.0]
DRAWS = 4000
Law = Callable[[Sequence[float]], list[float]]


def exact_law(row: Sequence[float], params: SamplingParams) -> list[float]:
    """The probabilities that the parameters describe, term by term."""
    largest = max(row)
    weights = [math.exp((value - largest) / params.temperature) for value in row]
    if params.top_k:
        last = sorted(weights, reverse=True)[min(params.top_k, len(row)) - 1]
        weights = [weight if weight >= last else 0.0 for weight in weights]
    total, mass, last = sum(weights), 0.0, 0.0
    for weight in sorted(weights, reverse=True):
        mass, last = mass + weight, weight
        if mass >= params.top_p * total:
            break
    weights = [weight if weight >= last and weight >= params.min_p else 0.0 for weight in weights]
    return [weight / sum(weights) for weight in weights]


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


@pytest.mark.parametrize("values", COMBINATIONS, ids=str)
@pytest.mark.parametrize("along", ["positions", "seeds"])
def test_draws_follow_the_exact_law(values: dict[str, float], along: str) -> None:
    row = torch.tensor(ROW)
    counts = [0] * len(ROW)
    for number in range(DRAWS):
        seed, position = (7, 1 + number) if along == "positions" else (number, 11)
        params = SamplingParams(**values, seed=seed)  # type: ignore[arg-type]
        counts[int(sample(row, params, position))] += 1
    law = exact_law(ROW, SamplingParams(**values))  # type: ignore[arg-type]
    assert chi_square(counts, law) > FALSE_ALARM


def test_a_temperature_that_is_off_by_a_seventh_is_found() -> None:
    row = torch.tensor(ROW)
    counts = [0] * len(ROW)
    for position in range(1, 1 + DRAWS):
        counts[int(sample(row, SamplingParams(temperature=0.85, seed=7), position))] += 1
    assert chi_square(counts, exact_law(ROW, SamplingParams(temperature=1.0))) < FALSE_ALARM


# --- two tokens in a row, with a drafter that is always wrong (a11) ---

# The law of the next token given the last: rows of logits over four tokens.
CHAIN = torch.tensor([
    [0.0, 1.0, -1.0, 0.5],
    [1.2, -0.5, 0.3, 0.0],
    [-1.0, 0.0, 1.5, 0.2],
    [0.4, 0.4, 0.4, -2.0],
])
PARAMS = SamplingParams(temperature=0.8)
Drafter = Callable[[int, int, int], int]  # seed, position, last token -> one draft token


def continuation(seed: int, draft: Drafter, *, faulty: bool = False) -> tuple[int, int]:
    """Two tokens behind token 0 at position 5, drafting one token in every step."""
    params = SamplingParams(temperature=0.8, seed=seed)
    known = [0]
    while len(known) < 3:
        token = draft(seed, 5 + len(known), known[-1])
        rows = torch.stack([CHAIN[known[-1]], CHAIN[token]])
        batch = one_row_batch(last_position=4 + len(known), draft=(token,), sampling=params)
        (result,) = verify(rows, batch)
        assert result is not None
        if faulty and not result.accepted:  # the fault of the report: one step late
            known.append(int(sample(CHAIN[token], params, 5 + len(known))))
        else:
            known.extend(result.token_ids)
    return known[1], known[2]


def target_token(seed: int, position: int, last: int) -> int:
    return int(sample(CHAIN[last], SamplingParams(temperature=0.8, seed=seed), position))


def wrong(seed: int, position: int, last: int) -> int:
    return (target_token(seed, position, last) + 1) % 4


def constant(seed: int, position: int, last: int) -> int:
    return 2


DRAFTERS: dict[str, Drafter] = {"wrong": wrong, "right": target_token, "constant": constant}


def joint_law() -> list[float]:
    first = torch.softmax(CHAIN[0].double() / 0.8, 0)
    second = torch.softmax(CHAIN.double() / 0.8, 1)
    return (first[:, None] * second).flatten().tolist()


def joint_counts(draft: Drafter, *, faulty: bool = False) -> list[int]:
    counts = [0] * 16
    for seed in range(3000):
        first, second = continuation(seed, draft, faulty=faulty)
        counts[4 * first + second] += 1
    return counts


@pytest.mark.parametrize("draft", DRAFTERS.values(), ids=DRAFTERS)
def test_two_token_continuations_follow_the_joint_law(draft: Drafter) -> None:
    assert chi_square(joint_counts(draft), joint_law()) > FALSE_ALARM


def test_a_continuation_drawn_behind_a_rejected_draft_is_found() -> None:
    assert chi_square(joint_counts(wrong, faulty=True), joint_law()) < FALSE_ALARM


def test_every_drafter_gives_the_same_two_tokens() -> None:
    for seed in range(200):
        found = {continuation(seed, draft) for draft in DRAFTERS.values()}
        assert len(found) == 1, seed


def test_the_chain_has_no_certain_token() -> None:
    """Else the joint law would be easy to meet."""
    law: Tensor = torch.tensor(joint_law())
    assert float(law.min()) > 0.001 and float(law.max()) < 0.5
