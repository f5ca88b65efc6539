"""The decoder computes a Llama: compared with a plain float64 one on toys of many shapes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.toy_gguf import LinearType, build_toy_model
from specd.device.texts import Feeder, Part, Text, random_ids
from specd.model.formats import WeightFormat
from tests.unit.device.texts import load_runner, torch_threads
from tests.unit.model.plain_llama import PlainLlama

LENGTH = 150


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def all_logits(path: Path, weights: WeightFormat, ids: list[int]) -> np.ndarray[Any, Any]:
    """specd's logits at every position, a prompt chunk first, then steps of 16 and of 1."""
    feeder = Feeder(load_runner(path, weights))
    text = Text(ids)
    while text.left:
        feeder.run([Part(text, min(16 if text.computed < 100 else 1, text.left))])
    return torch.stack([text.logits[at] for at in range(len(ids))]).numpy().astype(np.float64)


def errors(path: Path, weights: WeightFormat, vocab: int = 512) -> np.ndarray[Any, Any]:
    """Per position, |found - wanted| / |wanted|."""
    ids = random_ids(vocab, LENGTH, seed=1)
    found, wanted = all_logits(path, weights, ids), PlainLlama(path).logits(ids)
    assert found.shape == wanted.shape == (LENGTH, vocab)
    error: np.ndarray[Any, Any] = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(
        wanted, axis=1
    )
    return error


SHAPES: list[dict[str, Any]] = [
    {},
    {"tied": False},
    {"layers": 1},
    {"layers": 4},
    {"heads": 4, "kv_heads": 4},
    {"heads": 9, "kv_heads": 3, "vocab": 300},
    {"heads": 7, "kv_heads": 1, "head_dim": 64, "ffn": 160},
    {"heads": 3, "kv_heads": 1, "ffn": 96, "vocab": 333, "tied": False},
    {"heads": 2, "kv_heads": 2, "head_dim": 80},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fp32_logits_equal_the_plain_model(tmp_path: Path, shape: dict[str, Any]) -> None:
    """i01 among them: without output.weight the logits are x times the embedding."""
    path = tmp_path / "toy.gguf"
    build_toy_model(path, **shape)
    assert errors(path, "fp32", shape.get("vocab", 512)).max() < 1e-4  # measured: 1e-5


@pytest.mark.parametrize("linear_type", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("tied", [True, False])
def test_every_block_type_gives_the_plain_model_s_logits(
    tmp_path: Path, linear_type: LinearType, tied: bool
) -> None:
    path = tmp_path / "toy.gguf"
    build_toy_model(path, linear_type=linear_type, embed_type=linear_type, tied=tied)
    assert errors(path, "fp32").max() < 1e-4


@pytest.mark.parametrize(
    ("weights", "embed_type"),
    # In int4 an F16 head would lose 12 of its bits.
    [*((each, kind) for each in ("bf16", "auto") for kind in ("Q8_0", "Q4_1", "F16")),
     ("int4", "Q8_0"), ("int4", "Q4_1")],
)  # fmt: skip
@pytest.mark.parametrize("tied", [True, False])
def test_shorter_formats_stay_near_the_plain_model(
    tmp_path: Path, weights: WeightFormat, embed_type: LinearType, tied: bool
) -> None:
    """A toy's attention is sharp on purpose, which magnifies roundings; hence the wide bound."""
    path = tmp_path / "toy.gguf"
    build_toy_model(path, linear_type="Q4_1", embed_type=embed_type, tied=tied)
    assert np.median(errors(path, weights)) < 0.05  # measured: 0.028


def test_positions_matter(tmp_path: Path) -> None:
    """Else a decoder without rotary positions would pass on texts of one token."""
    path = tmp_path / "toy.gguf"
    build_toy_model(path)
    found = all_logits(path, "fp32", [5, 9, 9, 5, 9])
    swapped = all_logits(path, "fp32", [9, 5, 9, 5, 9])
    assert np.abs(found[-1] - swapped[-1]).max() > 0.1


def test_logits_are_fp32_whatever_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "toy.gguf"
    build_toy_model(path, linear_type="Q4_1", embed_type="Q8_0")
    for weights in ("fp32", "bf16", "int4"):
        feeder = Feeder(load_runner(path, weights))
        text = Text([1, 2, 3])
        feeder.run([Part(text, 3)])
        assert {row.dtype for row in text.logits.values()} == {torch.float32}
