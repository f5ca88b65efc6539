"""Keyed noise: any language computes the same numbers, and they are as good as random."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import specd.device.noise as noise
from specd.device.noise import gumbel, hash_words, key_tensor, key_words
from tests.unit.device.statistics import FALSE_ALARM, Z, chi_square, kolmogorov_smirnov

VECTORS = Path(__file__).parents[2] / "data" / "noise.json"
EULER = 0.5772156649015329
ROWS, VOCAB = 64, 8192  # half a million draws


@pytest.fixture(scope="module")
def published() -> dict[str, list[dict[str, Any]]]:
    document: dict[str, list[dict[str, Any]]] = json.loads(VECTORS.read_text())
    return document


def unsigned(words: Tensor) -> Tensor:
    return words.to(torch.int64) & 0xFFFFFFFF


def keys(seed: int, positions: range) -> Tensor:
    return key_tensor([key_words(seed, position) for position in positions])


@pytest.fixture(scope="module")
def draws() -> Tensor:
    """fp64 [positions 1 to 64, vocab] of one seed."""
    return gumbel(keys(12345, range(1, 1 + ROWS)), VOCAB).double()


@pytest.fixture(scope="module")
def uniforms() -> Tensor:
    words = unsigned(hash_words(keys(12345, range(1, 1 + ROWS)), VOCAB))
    return (words.double() + 0.5) / 2**32


def test_the_published_vectors_cover_the_ends_of_every_input(
    published: dict[str, list[dict[str, Any]]],
) -> None:
    found = {(v["seed"], v["position"], v["token"]) for v in published["vectors"]}
    assert found == {
        (seed, position, token)
        for seed in (0, 1, 1 << 63, (1 << 64) - 1)
        for position in (0, 1, 4095)
        for token in (0, 1, 31, 49151, 151935)
    }


def test_every_published_integer_is_exact_and_its_noise_within_a_millionth(
    published: dict[str, list[dict[str, Any]]],
) -> None:
    for vector in published["vectors"]:
        key = key_tensor([key_words(vector["seed"], vector["position"])])
        assert unsigned(hash_words(key, 151936))[0, vector["token"]] == vector["h"], vector
        assert abs(float(gumbel(key, 151936)[0, vector["token"]]) - vector["g"]) < 1e-6, vector


def test_noise_at_both_ends_of_the_integers_is_finite_and_as_published(
    published: dict[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = torch.tensor([[edge["h"] for edge in published["edges"]]])
    assert {0, (1 << 32) - 1} <= set(words.flatten().tolist())
    signed = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
    # No (seed, position) is known that gives these: they stand in for the mix's result.
    monkeypatch.setattr(noise, "hash_words", lambda keys, vocab_size: signed.clone())
    found = gumbel(torch.zeros(1, 2, dtype=torch.int32), words.shape[1])
    assert torch.isfinite(found).all()
    wanted = torch.tensor([[edge["g"] for edge in published["edges"]]])
    assert torch.allclose(found, wanted, rtol=0, atol=1e-6)


def test_noise_falls_as_the_draw_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    # 64 neighbours at each of 64 places: fp32 may merge them, never swap them.
    starts = torch.arange(64, dtype=torch.int64)[:, None] * ((1 << 32) // 64)
    words = (starts + torch.arange(64)).flatten()[None]
    signed = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
    monkeypatch.setattr(noise, "hash_words", lambda keys, vocab_size: signed.clone())
    found = gumbel(torch.zeros(1, 2, dtype=torch.int32), words.shape[1])[0]
    assert (found.diff() <= 0).all()


def test_a_row_among_others_has_the_noise_of_the_row_alone() -> None:
    together = gumbel(keys(9, range(40)), 1000)
    for position in range(40):
        alone = gumbel(keys(9, range(position, position + 1)), 1000)
        assert torch.equal(together[position], alone[0])


def test_a_longer_vocabulary_changes_no_draw_of_a_shorter() -> None:
    longer = hash_words(keys(9, range(3)), 151936)
    for vocab in (1, 2, 300, 8193, 49152):
        assert torch.equal(hash_words(keys(9, range(3)), vocab), longer[:, :vocab])


def test_seeds_are_unsigned_64_bit_and_all_different() -> None:
    seeds = [0, 1, 2, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    words = {key_words(seed, position) for seed in seeds for position in range(1, 2000)}
    assert len(words) == len(seeds) * 1999
    assert all(0 <= word < 1 << 32 for pair in words for word in pair)


def test_draws_are_uniform(uniforms: Tensor) -> None:
    ascending = uniforms.flatten().sort().values
    assert kolmogorov_smirnov(ascending, ascending) > FALSE_ALARM


def test_the_lowest_bits_are_uniform_too(uniforms: Tensor) -> None:
    words = (uniforms * 2**32).floor().long() & 255
    counts = words.flatten().bincount(minlength=256).tolist()
    assert chi_square(counts, [1 / 256] * 256) > FALSE_ALARM


def test_noise_follows_the_gumbel_law(draws: Tensor) -> None:
    ascending = draws.flatten().sort().values
    assert kolmogorov_smirnov(ascending, (-(-ascending).exp()).exp()) > FALSE_ALARM


def test_noise_has_the_mean_and_variance_of_the_law(draws: Tensor) -> None:
    variance = math.pi**2 / 6
    # The kurtosis of a Gumbel law is 5.4, which sets the spread of a sample variance.
    spread = variance * math.sqrt((5.4 - 1) / draws.numel())
    assert abs(float(draws.mean()) - EULER) < Z * math.sqrt(variance / draws.numel())
    assert abs(float(draws.var()) - variance) < Z * spread


@pytest.mark.parametrize("lag", [1, 2, 8, 16, 64, 4096])
def test_neighbours_in_the_vocabulary_are_independent(uniforms: Tensor, lag: int) -> None:
    assert pair_p_value(uniforms[:, :-lag], uniforms[:, lag:]) > FALSE_ALARM


@pytest.mark.parametrize("lag", [1, 2, 32])
def test_neighbouring_positions_are_independent(uniforms: Tensor, lag: int) -> None:
    assert pair_p_value(uniforms[:-lag], uniforms[lag:]) > FALSE_ALARM


@pytest.mark.parametrize("other", [12346, 12345 + (1 << 32), 12345 ^ (1 << 63)])
def test_neighbouring_seeds_are_independent(uniforms: Tensor, other: int) -> None:
    words = unsigned(hash_words(keys(other, range(1, 1 + ROWS)), VOCAB))
    assert pair_p_value(uniforms, (words.double() + 0.5) / 2**32) > FALSE_ALARM


def test_the_winner_of_equal_logits_is_any_token(draws: Tensor) -> None:
    rows = [gumbel(keys(seed, range(1, 201)), 16).argmax(1) for seed in range(50)]
    counts = torch.cat(rows).bincount(minlength=16).tolist()
    assert chi_square(counts, [1 / 16] * 16) > FALSE_ALARM


def test_these_tests_find_a_weaker_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """One word at one round leaves rows that are shifts of each other."""
    monkeypatch.setattr(noise, "_mix", lambda x: x.mul_(-1640531527))
    words = unsigned(noise.hash_words(keys(12345, range(1, 1 + ROWS)), VOCAB))
    weak = (words.double() + 0.5) / 2**32
    assert pair_p_value(weak[:, :-1], weak[:, 1:]) < FALSE_ALARM


def pair_p_value(left: Tensor, right: Tensor) -> float:
    """Chi-square of 16 x 16 cells of paired draws."""
    cells = (left * 16).floor().long() * 16 + (right * 16).floor().long()
    return chi_square(cells.flatten().bincount(minlength=256).tolist(), [1 / 256] * 256)
