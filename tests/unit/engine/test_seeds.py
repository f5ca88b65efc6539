"""Promises of the seeds: each sequence of a request has its own, by a rule for any language."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specd.engine.seeds import finalise, sequence_seed

SEEDS = st.integers(0, 2**64 - 1)
MAX_SEQUENCES = 16
VECTORS = [
    0,
    12489560693144743404,
    13672351141349865712,
    9089073381106734772,
    7,
    9879153190347316257,
    16950153463417400392,
    6023984126713737992,
]


def by_the_rule(seed: int, index: int) -> int:
    """As written down, step by step: finalise(finalise(seed) + k * 0xD1342543DE82EF95)."""

    def finaliser(z: int) -> int:
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z ^= z >> shift
            z = z * factor % 2**64
        return z ^ z >> 31

    return finaliser((finaliser(seed) + index * 0xD1342543DE82EF95) % 2**64)


@given(SEEDS)
def test_the_first_sequence_has_the_seed_of_the_request(seed: int) -> None:
    assert sequence_seed(seed, 0) == seed


@given(SEEDS, st.integers(1, MAX_SEQUENCES - 1))
def test_every_other_sequence_has_the_seed_that_the_rule_gives(seed: int, index: int) -> None:
    assert sequence_seed(seed, index) == by_the_rule(seed, index) < 2**64


def test_the_seeds_of_seed_0_and_7_are_these() -> None:
    assert [sequence_seed(seed, index) for seed in (0, 7) for index in (0, 1, 2, 15)] == VECTORS


def test_neighbouring_seeds_and_sequences_share_none() -> None:
    seeds = {sequence_seed(seed, index) for seed in range(500) for index in range(MAX_SEQUENCES)}
    assert len(seeds) == 500 * MAX_SEQUENCES


def test_the_finaliser_is_that_of_splitmix64() -> None:
    # The first outputs of the generator from state 0, as its author published them.
    golden = 0x9E3779B97F4A7C15
    assert [finalise(n * golden % 2**64) for n in (1, 2, 3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
