"""Keyed noise: the noise of an id depends on nothing else, and follows the Gumbel law.

The words that it is made of have a battery of their own: test_noise_battery.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import specd.device.noise as noise
from specd.device.noise import gumbel, key_tensor
from specd.engine.seeds import key_words, sequence_seed
from tests.unit.device.noise_streams import SPECD
from tests.unit.device.statistics import (
    FALSE_ALARM,
    chi_square,
    kolmogorov_smirnov,
    normal_two_sided,
)

EULER = 0.5772156649015329
ROWS, VOCAB = 64, 8192  # half a million draws


def keys(seed: int, positions: range) -> Tensor:
    return key_tensor([key_words(seed, position) for position in positions])


@pytest.fixture(scope="module")
def draws() -> Tensor:
    """fp64 [positions 1 to 64, vocab] of one seed."""
    return gumbel(keys(12345, range(1, 1 + ROWS)), VOCAB).double()


def uniforms_of(seed: int) -> Tensor:
    """fp64 [positions 1 to 64, vocab], before anything is rounded."""
    words = SPECD.rows([(seed, t) for t in range(1, 1 + ROWS)], VOCAB)
    return torch.from_numpy((words + 0.5) / 2**32)


@pytest.fixture(scope="module")
def uniforms() -> Tensor:
    return uniforms_of(12345)


def test_noise_falls_as_the_draw_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    # 64 neighbours at each of 64 places: fp32 may merge them, never swap them.
    starts = torch.arange(64, dtype=torch.int64)[:, None] * ((1 << 32) // 64)
    words = (starts + torch.arange(64)).flatten()[None]
    signed = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
    monkeypatch.setattr(noise, "hash_words", lambda keys, vocab_size: signed.clone())
    found = gumbel(torch.zeros(1, 2, dtype=torch.int32), words.shape[1])[0]
    assert (found.diff() <= 0).all()


@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("vocab", [1, 2, 17, 300, 1021, 8193, 49_152])
def test_the_noise_of_an_id_knows_no_other_row_and_no_other_id(num_rows: int, vocab: int) -> None:
    places = [(seed, position) for seed in (9, 1 << 63) for position in range(1, 21)][:num_rows]
    together = gumbel(key_tensor([key_words(*place) for place in places]), vocab)
    for row, place in zip(together, places, strict=True):
        alone = gumbel(key_tensor([key_words(*place)]), 151_936)[0]
        assert torch.equal(row, alone[:vocab])


def test_seeds_are_unsigned_64_bit_and_all_different() -> None:
    seeds = [0, 1, 2, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    words = {key_words(seed, position) for seed in seeds for position in range(1, 2000)}
    assert len(words) == len(seeds) * 1999
    assert all(0 <= word < 1 << 32 for pair in words for word in pair)


def test_draws_are_uniform(uniforms: Tensor) -> None:
    ascending = uniforms.flatten().sort().values
    assert kolmogorov_smirnov(ascending, ascending) > FALSE_ALARM


def law_p_values(noise_values: Tensor) -> list[float]:
    """Of the whole law, of its mean and of its variance."""
    ascending, n = noise_values.flatten().sort().values, noise_values.numel()
    variance = math.pi**2 / 6
    # The kurtosis of a Gumbel law is 5.4, which sets the spread of a sample variance.
    spread = variance * math.sqrt((5.4 - 1) / n)
    return [
        kolmogorov_smirnov(ascending, (-(-ascending).exp()).exp()),
        normal_two_sided(float(ascending.mean() - EULER) / math.sqrt(variance / n)),
        normal_two_sided(float(ascending.var() - variance) / spread),
    ]


def test_noise_follows_the_gumbel_law_with_its_mean_and_variance(draws: Tensor) -> None:
    assert min(law_p_values(draws)) > FALSE_ALARM


WRONG_LAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "of the least instead of the largest": lambda g: 2 * EULER - g,
    "wider": lambda g: 1.01 * g,
    "shifted": lambda g: g + 0.01,
    "with a u of nine bits": lambda g: g.clamp(max=6),
}


@pytest.mark.parametrize("wrong", WRONG_LAWS.values(), ids=WRONG_LAWS)
def test_another_law_is_found(draws: Tensor, wrong: Callable[[Tensor], Tensor]) -> None:
    assert min(law_p_values(wrong(draws))) < FALSE_ALARM


@pytest.mark.parametrize("lag", [1, 2, 8, 16, 64, 4096])
def test_neighbours_in_the_vocabulary_are_independent(uniforms: Tensor, lag: int) -> None:
    assert pair_p_value(uniforms[:, :-lag], uniforms[:, lag:]) > FALSE_ALARM


@pytest.mark.parametrize("lag", [1, 2, 32])
def test_neighbouring_positions_are_independent(uniforms: Tensor, lag: int) -> None:
    assert pair_p_value(uniforms[:-lag], uniforms[lag:]) > FALSE_ALARM


@pytest.mark.parametrize(
    "other", [12346, 12345 + (1 << 32), 12345 ^ (1 << 63), sequence_seed(12345, 1)]
)
def test_neighbouring_seeds_are_independent(uniforms: Tensor, other: int) -> None:
    assert pair_p_value(uniforms, uniforms_of(other)) > FALSE_ALARM


def test_the_winner_of_equal_logits_is_any_token(draws: Tensor) -> None:
    rows = [gumbel(keys(seed, range(1, 201)), 16).argmax(1) for seed in range(50)]
    counts = torch.cat(rows).bincount(minlength=16).tolist()
    assert chi_square(counts, [1 / 16] * 16) > FALSE_ALARM


def test_these_tests_find_a_weaker_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """One word at one round leaves rows that are shifts of each other."""
    monkeypatch.setattr(noise, "_mix", lambda x: x.mul_(-1640531527))
    weak = uniforms_of(12345)
    assert pair_p_value(weak[:, :-1], weak[:, 1:]) < FALSE_ALARM


def pair_p_value(left: Tensor, right: Tensor) -> float:
    """Chi-square of 16 x 16 cells of paired draws."""
    cells = (left * 16).floor().long() * 16 + (right * 16).floor().long()
    return chi_square(cells.flatten().bincount(minlength=256).tolist(), [1 / 256] * 256)
