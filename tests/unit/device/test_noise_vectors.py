"""Any language computes the noise: four implementations agree on the published vectors.

They are specd's own, plain Python, Node, and the page docs/noise.md for people.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import specd.device.noise as noise
from specd.device.noise import gumbel, key_tensor
from specd.engine.seeds import key_words, sequence_seed
from tests.support.node import node_path
from tests.support.plain_noise import VECTORS, as_text, document
from tests.unit.device.noise_streams import SPECD

DOCS = Path(__file__).parents[3] / "docs"
TOLERANCE = 1e-6
Document = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def published() -> Document:
    found: Document = json.loads(VECTORS.read_text())
    return found


def test_the_published_vectors_are_those_of_plain_python() -> None:
    assert VECTORS.read_text() == as_text(document())


def test_the_published_vectors_cover_the_ends_of_every_input(published: Document) -> None:
    found = {(int(v["seed"]), v["position"], v["token"]) for v in published["vectors"]}
    assert found == {
        (seed, position, token)
        for seed in (0, 1, 1 << 63, (1 << 64) - 1)
        for position in (0, 1, 4095, 1 << 31)
        for token in (0, 1, 31, 49151, 151935)
    }
    assert {0, (1 << 32) - 1} <= {edge["h"] for edge in published["edges"]}
    assert {0, 1, 15} <= {vector["index"] for vector in published["sequence_seeds"]}


def test_every_published_key_is_exact(published: Document) -> None:
    for vector in published["keys"]:
        high, low = key_words(int(vector["seed"]), vector["position"])
        assert high << 32 | low == int(vector["key"]), vector


def test_every_published_integer_is_exact_and_its_noise_within_a_millionth(
    published: Document,
) -> None:
    for vector in published["vectors"]:
        place, token = (int(vector["seed"]), vector["position"]), vector["token"]
        assert SPECD.rows([place], 151_936)[0, token] == vector["h"], vector
        noise_of_all = gumbel(key_tensor([key_words(*place)]), 151_936)[0]
        assert abs(float(noise_of_all[token]) - vector["g"]) < TOLERANCE, vector


def test_noise_at_both_ends_of_the_integers_is_finite_and_as_published(
    published: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = torch.tensor([[edge["h"] for edge in published["edges"]]])
    signed = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
    # No (seed, position) is known that gives these: they stand in for the mix's result.
    monkeypatch.setattr(noise, "hash_words", lambda keys, vocab_size: signed.clone())
    found = gumbel(torch.zeros(1, 2, dtype=torch.int32), words.shape[1])
    assert torch.isfinite(found).all()
    wanted = torch.tensor([[edge["g"] for edge in published["edges"]]])
    assert torch.allclose(found, wanted, rtol=0, atol=TOLERANCE)


def test_every_published_seed_of_a_sequence_is_exact(published: Document) -> None:
    for vector in published["sequence_seeds"]:
        found = sequence_seed(int(vector["seed"]), vector["index"])
        assert found == int(vector["sequence_seed"]), vector


def test_node_reproduces_every_published_vector(published: Document) -> None:
    done = subprocess.run(
        [node_path(), str(DOCS / "noise.mjs")],
        input=json.dumps({name: _inputs(part) for name, part in published.items()}),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found: Document = json.loads(done.stdout)
    assert sorted(found) == sorted(published)
    for name, part in published.items():
        for theirs, ours in zip(found[name], part, strict=True):
            close = abs(theirs.pop("g", 0.0) - ours.get("g", 0.0)) < TOLERANCE
            assert close and theirs == {k: v for k, v in ours.items() if k != "g"}, name


def _inputs(part: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the results, so that nobody can copy them; an edge is its own input."""
    names = {"seed", "position", "token", "index"}
    return [{k: v for k, v in vector.items() if k in names} or vector for vector in part]


def test_the_vectors_of_the_page_are_published_ones(published: Document) -> None:
    page = (DOCS / "noise.md").read_text()
    row = r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (-?\d+\.\d+) \|$"
    told = {
        (int(seed), int(position), int(token)): (int(h), float(g))
        for seed, position, token, h, g in re.findall(row, page, re.MULTILINE)
    }
    known = {
        (int(v["seed"]), v["position"], v["token"]): (v["h"], v["g"]) for v in published["vectors"]
    }
    assert len(told) >= 4
    for place, (h, g) in told.items():
        assert known[place] == (h, pytest.approx(g, rel=0, abs=TOLERANCE))
