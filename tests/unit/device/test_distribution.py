"""Three tokens in a row follow exactly the law of their parameters, whoever drafts.

A toy target with known probabilities, the real padding stage and verifier, and consecutive seeds.
Every processor alone and all of them together run with every drafter; every pair of processors runs
with one of the drafters, as each processor does in torch. Chi-square against the exact law of one,
two and three tokens. A p-value below `FALSE_ALARM` (1e-7) fails; there are fewer than 1,000, so the
probability that a right verifier would have failed was at most 1e-4 on the day the seeds were
chosen. The same statistics, at the same size or less, find every planted fault.
SPECD_STATISTICS_SCALE=2 runs twice as many seeds, and every subset of the processors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import combinations
from typing import Any

import pytest
import torch

from specd.core import library
from specd.core.sampler import CoreSampler
from specd.device.sampler import Sampler, TorchSampler
from specd.device.verifier import verify
from specd.engine.params import SamplingParams
from tests.unit.device import wrong_verifiers
from tests.unit.device.noise_streams import SCALE
from tests.unit.device.statistics import chi_square
from tests.unit.device.toy_law import (
    DRAFTERS,
    FORTUNE_TELLERS,
    LENGTH,
    VOCAB,
    Combination,
    Drafter,
    QuickSampler,
    Token,
    Verifier,
    continuations,
    grammatical,
    joint_law,
    marginal,
    ngram,
    off,
    oracle,
    random_lengths,
)
from tests.unit.device.wrong_verifiers import RightVerifier

FALSE_ALARM = 1e-7
NUM_SEEDS = 250 * SCALE  # of each drafter
NUM_SEEDS_OF_PAIRS = 400 * SCALE
NUM_SEEDS_OF_FAULTS = 600
TORCH = QuickSampler()
# The one that serves: of the core, where it was built.
SERVING = CoreSampler(VOCAB, isa=library.supported()[0]) if library.supported() else TORCH

PROCESSORS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.85},
    "min_p": {"min_p": 0.12},
    "repetition": {"repetition_penalty": 1.7},
    "presence": {"presence_penalty": 1.1},
    "frequency": {"frequency_penalty": 0.8},
    "bias": {"logit_bias": ((2, -1.0), (3, 1.5))},
    "min_new_tokens": {"min_new_tokens": 2},
    "structure": {"structured": True},
}


def combination_of(names: Collection[str], **others: Any) -> Combination:
    values = {k: v for name in names for k, v in PROCESSORS[name].items()} | others
    own = {name: values.pop(name) for name in ("min_new_tokens", "structured") if name in values}
    return Combination(SamplingParams(**values), **own)


def legal(names: Collection[str]) -> bool:
    """min_new_tokens is refused beside a structure."""
    return not {"min_new_tokens", "structure"} <= set(names)


EVERYTHING = [name for name in PROCESSORS if name != "structure"]
STRUCTURED = [name for name in PROCESSORS if name != "min_new_tokens"]
THOROUGH: dict[str, Combination] = {
    "nothing": Combination(),
    **{name: combination_of([name]) for name in PROCESSORS},
    "hot": Combination(SamplingParams(temperature=1.8)),
    "rewards": combination_of([], repetition_penalty=0.7, presence_penalty=-0.9),
    "greedy": combination_of(["presence", "bias"], temperature=0.0),
    "everything": combination_of(EVERYTHING),
    "everything structured": combination_of(STRUCTURED),
}
SIZES = range(len(PROCESSORS) + 1) if SCALE > 1 else [2]
SUBSETS = [names for size in SIZES for names in combinations(PROCESSORS, size) if legal(names)]


def p_values(law: Mapping[Token, float], sequences: Collection[Token]) -> list[float]:
    """Of the first token, the first two, and all three."""
    found = []
    for length in range(1, LENGTH + 1):
        shares = marginal(law, length)
        counts = Counter(tokens[:length] for tokens in sequences)
        found.append(chi_square([counts[tokens] for tokens in shares], list(shares.values())))
    return found


def drawn(
    combination: Combination,
    drafter: Drafter,
    seeds: range,
    verifier: Verifier = verify,
    sampler: Sampler = SERVING,
) -> list[Token]:
    """The sequences of `seeds`."""
    futures: dict[int, Token] = {}
    with torch.inference_mode():
        if drafter in FORTUNE_TELLERS:
            futures = continuations(combination, off, seeds, verify, sampler)
        found = continuations(combination, drafter, seeds, verifier, sampler, futures)
    return list(found.values())


@pytest.mark.parametrize("name", THOROUGH)
def test_three_tokens_follow_the_exact_law_with_every_drafter(name: str) -> None:
    combination, everyone = THOROUGH[name], list[Token]()
    law = joint_law(combination)
    for number, drafter in enumerate(DRAFTERS):
        start = 1000 + number * NUM_SEEDS
        sequences = drawn(combination, drafter, range(start, start + NUM_SEEDS))
        assert min(p_values(law, sequences)) > FALSE_ALARM, drafter.__name__
        everyone += sequences
    assert min(p_values(law, everyone)) > FALSE_ALARM


@pytest.mark.parametrize("names", SUBSETS, ids="+".join)
def test_three_tokens_follow_the_exact_law_of_every_pair(names: tuple[str, ...]) -> None:
    drafter = DRAFTERS[SUBSETS.index(names) % len(DRAFTERS)]
    combination = combination_of(names)
    sequences = drawn(combination, drafter, range(NUM_SEEDS_OF_PAIRS))
    assert min(p_values(joint_law(combination), sequences)) > FALSE_ALARM


@pytest.mark.parametrize("name", THOROUGH)
def test_in_torch_three_tokens_follow_the_exact_law(name: str) -> None:
    combination = THOROUGH[name]
    sequences = drawn(combination, random_lengths, range(NUM_SEEDS_OF_PAIRS), sampler=TORCH)
    assert min(p_values(joint_law(combination), sequences)) > FALSE_ALARM


# --- the same tests find every planted fault ---

FAULTS: dict[str, tuple[Verifier, Combination, Drafter]] = {
    "a draft token is checked one too late": (
        wrong_verifiers.OffByOne(),
        Combination(),
        random_lengths,
    ),
    "pads are accepted": (wrong_verifiers.PadsAccepted(), Combination(), off),
    "the first is not verified": (wrong_verifiers.FirstUnverified(), Combination(), ngram),
    "the own token is drawn behind the rejected one": (
        wrong_verifiers.ResidualFromTheWrongRow(),
        Combination(),
        random_lengths,
    ),
    "noise serves several positions": (wrong_verifiers.NoiseOfTheStep(), Combination(), oracle),
    "penalties count once in a step": (
        wrong_verifiers.PenaltiesOncePerStep(),
        combination_of([], presence_penalty=2.0, frequency_penalty=0.8),
        oracle,
    ),
    "rejected drafts leave a trace": (
        wrong_verifiers.RejectedDraftsLeaveATrace(),
        combination_of([], presence_penalty=2.0),
        ngram,
    ),
    "the structure is asked once in a step": (
        wrong_verifiers.MaskOfTheFirstPosition(),
        combination_of(["structure"]),
        grammatical,
    ),
    "a ban lasts for the step": (
        wrong_verifiers.BansOfTheStep(),
        combination_of(["min_new_tokens"]),
        oracle,
    ),
    "the bias is for the bonus token": (
        wrong_verifiers.NO_BIAS,
        combination_of(["bias"]),
        random_lengths,
    ),
    "truncation is for the bonus token": (
        wrong_verifiers.NO_TRUNCATION,
        combination_of(["top_k", "top_p"], top_p=0.6),
        random_lengths,
    ),
    "the temperature is for the bonus token": (
        wrong_verifiers.NO_TEMPERATURE,
        combination_of([], temperature=0.5),
        random_lengths,
    ),
    "drafts are accepted greedily": (
        wrong_verifiers.GreedyAcceptance(),
        Combination(),
        random_lengths,
    ),
    "the bias comes before the penalties": (
        wrong_verifiers.BiasBeforePenalties(),
        combination_of(["bias"], repetition_penalty=2.5),
        random_lengths,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    verifier, combination, drafter = FAULTS[fault]
    sequences = drawn(combination, drafter, range(NUM_SEEDS_OF_FAULTS), verifier)
    assert min(p_values(joint_law(combination), sequences)) < FALSE_ALARM


@pytest.mark.parametrize("fault", FAULTS)
def test_without_its_fault_the_planted_verifier_is_the_right_one(fault: str) -> None:
    """Else it would be found for a reason of its own."""
    _, combination, drafter = FAULTS[fault]
    right = drawn(combination, drafter, range(200, 300))
    assert drawn(combination, drafter, range(200, 300), RightVerifier()) == right


@pytest.mark.parametrize("name", THOROUGH)
def test_the_samplers_of_these_tests_are_the_reference(name: str) -> None:
    for seeds in (range(60), range(2**64 - 60, 2**64)):
        reference = drawn(THOROUGH[name], random_lengths, seeds, sampler=TorchSampler())
        for sampler in (TORCH, SERVING):
            assert drawn(THOROUGH[name], random_lengths, seeds, sampler=sampler) == reference


def test_the_exact_law_has_no_certain_and_no_hidden_token() -> None:
    """Else it would be easy to meet."""
    shares = joint_law(Combination())
    assert sum(shares.values()) == pytest.approx(1)
    assert max(shares.values()) < 0.15
    assert sum(share * NUM_SEEDS_OF_FAULTS > 1 for share in shares.values()) > 100
