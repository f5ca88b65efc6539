"""The core's noise is the published one: integers exact, logarithms within a millionth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specd.core import library
from specd.device.noise import hash_words, key_tensor
from specd.engine.seeds import key_words
from tests.unit.core.choices import F32, F64, ISAS, Words

pytestmark = [pytest.mark.usefixtures("needs_core"), pytest.mark.parametrize("isa", ISAS)]

VECTORS = Path(__file__).parents[2] / "data" / "noise.json"


@pytest.fixture(scope="module")
def published() -> dict[str, list[dict[str, Any]]]:
    document: dict[str, list[dict[str, Any]]] = json.loads(VECTORS.read_text())
    return document


def hashes(seed: int, position: int, count: int, isa: str) -> Words:
    made = np.empty(count, np.uint32)
    library.opened().specd_hashes(seed, position, count, made.ctypes.data, library.ISAS[isa])
    return made


def noise(words: Words, isa: str) -> F32:
    made = np.empty(len(words), np.float32)
    library.opened().specd_noise(words.ctypes.data, len(words), made.ctypes.data, library.ISAS[isa])
    return made


def exact(words: Words) -> F64:
    """The definition in fp64, of `u` in fp32."""
    u = ((words.astype(np.float64) + 0.5) / 2**32).astype(np.float32).astype(np.float64)
    return -np.log(-np.log1p(-np.minimum(u, 1 - 2.0**-24)))


def test_every_published_integer_is_exact_and_its_noise_within_a_millionth(
    published: dict[str, list[dict[str, Any]]], isa: str
) -> None:
    assert published["vectors"]
    for vector in published["vectors"]:
        seed, token = int(vector["seed"]), vector["token"]
        word = hashes(seed, vector["position"], token + 1, isa)[token:]
        assert word[0] == vector["h"], vector
        assert abs(float(noise(word, isa)[0]) - vector["g"]) < 1e-6, vector
    edges = published["edges"]
    found = noise(np.array([edge["h"] for edge in edges], np.uint32), isa)
    assert np.abs(found - np.array([edge["g"] for edge in edges])).max() < 1e-6


@pytest.mark.parametrize("count", [1, 15, 16, 17, 8193])
def test_integers_are_those_of_the_reference(isa: str, count: int) -> None:
    for seed in (0, 77, 2**63 + 5, 2**64 - 1):
        for position in (0, 1, 2**31 - 1, 2**31, 2**40):
            wanted = hash_words(key_tensor([key_words(seed, position)]), count)[0].numpy()
            assert np.array_equal(hashes(seed, position, count, isa), wanted.view(np.uint32))


def test_noise_is_within_a_millionth_and_nearly_always_the_nearest_number(isa: str) -> None:
    """Both ends, where logarithms are steep, and the middle; 9.5e-7 is half a step at 16."""
    ends = np.arange(1 << 17, dtype=np.uint64)
    middle = np.arange(0, 1 << 32, 16411, dtype=np.uint64)
    words = np.concatenate([ends, (1 << 32) - 1 - ends, middle]).astype(np.uint32)
    found, wanted = noise(words, isa), exact(words)
    assert np.abs(found - wanted).max() < 9.6e-7
    assert (found != wanted.astype(np.float32)).sum() <= 3
    assert wanted.max() < 22.875  # what the sampler takes for the most
