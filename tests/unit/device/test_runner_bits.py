"""A row's logits do not depend, to the bit, on what ran beside it or on how it got there.

On toy models with awkward sizes: vector loops have tails, head counts are odd. Both runners, torch
and the core with the instruction set that it chooses here; others of its sets, long texts and
windows are in tests/unit/core, the real model in tests/model.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks.toy_gguf import build_toy_model
from specd.core.loader import HEAD_MULTIPLE
from specd.device.eager import EagerRunner, packed_buckets
from specd.device.texts import Feeder, Part, Text, differing, random_chunks, random_ids
from specd.engine.step_types import LayoutSpec
from specd.model.formats import WeightFormat
from tests.unit.device.texts import CORE_KERNELS, KERNELS, load_any, load_runner, torch_threads

RECTANGLE = LayoutSpec(packed_buckets(512), widths=(1, 2, 4, 8, 16), row_buckets=(1, 2, 4))
LENGTH = 140  # crosses a KV boundary

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd vocabulary": {"vocab": 300},
    "prime vocabulary": {"vocab": 521, "tied": False},
    "ffn 96": {"ffn": 96},
    "group of 1": {"heads": 4, "kv_heads": 4, "head_dim": 32},
    "group of 3": {"heads": 9, "kv_heads": 3, "head_dim": 32, "vocab": 300},
    "group of 7": {"heads": 7, "kv_heads": 1, "head_dim": 64, "ffn": 160},
    "hidden 96": {"heads": 3, "kv_heads": 1, "head_dim": 32, "ffn": 96, "vocab": 333},
    "head of 80": {"heads": 2, "kv_heads": 2, "head_dim": 80, "ffn": 224},
    "head of 24": {"heads": 4, "kv_heads": 2, "head_dim": 24, "ffn": 96},
}
FORMATS: dict[str, tuple[WeightFormat, dict[str, Any]]] = {
    "fp32": ("fp32", {}),
    "bf16": ("bf16", {}),
    "int4": ("int4", {"linear_type": "Q4_1", "embed_type": "Q8_0"}),
}


Case = tuple[str, str, str]  # kernels, shape, format
TORCH: list[Case] = [("torch", shape, format) for shape in SHAPES for format in FORMATS]
# The core takes heads of whole vectors.
CORE: list[Case] = [
    (kernels, shape, format)
    for kernels in CORE_KERNELS[:1]
    for shape in SHAPES
    for format in FORMATS
    if SHAPES[shape].get("head_dim", 32) % HEAD_MULTIPLE == 0
]


@pytest.fixture(scope="module", params=TORCH + CORE, ids="-".join)
def feeder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Feeder:
    kernels, shape, format = request.param
    weights, types = FORMATS[format]
    path = tmp_path_factory.mktemp("toy") / "toy.gguf"
    build_toy_model(path, **SHAPES[shape], **types)
    return Feeder(load_any(path, weights, kernels))


@pytest.fixture(scope="module")
def ids(feeder: Feeder) -> list[int]:
    return random_ids(feeder.runner.config.vocab_size, LENGTH, seed=3)


@pytest.fixture(scope="module")
def alone(feeder: Feeder, ids: list[int], one_thread: None) -> Text:
    """The reference: one position at a time, alone in the daemon."""
    return feeder.one_at_a_time(ids)


def neighbours(feeder: Feeder) -> list[Text]:
    vocab = feeder.runner.config.vocab_size
    return [Text(random_ids(vocab, length, seed=length)) for length in (150, 33, 90)]


def test_random_widths_with_wrong_drafts_change_no_bit(
    feeder: Feeder, ids: list[int], alone: Text
) -> None:
    for seed in (1, 2):
        text = Text(ids)
        feeder.random_widths([text], random.Random(seed))
        assert text.logits.keys() == alone.logits.keys()
        assert differing(text, alone) == 0


def test_prompt_chunks_change_no_bit(feeder: Feeder, ids: list[int], alone: Text) -> None:
    for chunks in ([LENGTH], [1, LENGTH - 1], [127, 13], [128, 12], random_chunks(LENGTH, rng(5))):
        assert differing(feeder.in_chunks(ids, chunks), alone) == 0


def test_neighbours_change_no_bit(feeder: Feeder, ids: list[int], alone: Text) -> None:
    text = Text(ids)
    feeder.random_widths([text, *neighbours(feeder)], rng(6))
    assert differing(text, alone) == 0


def test_pages_that_others_used_change_no_bit(feeder: Feeder, ids: list[int], alone: Text) -> None:
    """Pages come back in another order, and dirty."""
    dirty = neighbours(feeder)
    feeder.random_widths(dirty, rng(7))
    assert differing(feeder.in_chunks(ids, random_chunks(LENGTH, rng(8))), alone) == 0


@pytest.mark.parametrize("feeder", TORCH, ids="-".join, indirect=True)
def test_a_rectangle_gives_the_bits_of_packed_rows(
    feeder: Feeder, ids: list[int], alone: Text
) -> None:
    runner = feeder.runner
    assert isinstance(runner, EagerRunner)
    as_rectangle = EagerRunner(
        runner.decoder, num_pages=runner.num_pages, layout=RECTANGLE, strict=True
    )
    text, others = Text(ids), neighbours(feeder)
    rectangle = Feeder(as_rectangle)
    buckets = {rectangle.batch([Part(text, 3), Part(others[0], 5)]).bucket}
    for each in (text, others[0]):
        rectangle.close(each)
    assert buckets == {"2x8"}
    rectangle.random_widths([text, *others], rng(9))
    assert differing(text, alone) == 0


@pytest.mark.parametrize("name", SHAPES)
def test_the_check_fails_where_the_rules_are_off(tmp_path: Path, name: str) -> None:
    """fp32 shows it on every shape, so the tests above are known to be able to fail."""
    build_toy_model(tmp_path / "toy.gguf", **SHAPES[name])
    relaxed = Feeder(load_runner(tmp_path / "toy.gguf", "fp32", strict=False))
    text = Text(random_ids(relaxed.runner.config.vocab_size, LENGTH, seed=3))
    relaxed.random_widths([text], rng(1))
    assert differing(text, relaxed.one_at_a_time(text.ids)) > LENGTH / 2


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_lone_head_keeps_its_bits_on_several_threads(
    tmp_path: Path, name: str, kernels: str
) -> None:
    """One row and one KV head: torch would spread that head over the threads (measured on 3)."""
    weights, types = FORMATS[name]
    build_toy_model(tmp_path / "toy.gguf", **SHAPES["group of 7"], **types)
    with torch_threads(3):
        feeder = Feeder(load_any(tmp_path / "toy.gguf", weights, kernels))
        ids = random_ids(512, LENGTH, seed=3)
        text = Text(ids)
        feeder.random_widths([text], rng(1))
        assert differing(text, feeder.one_at_a_time(ids)) == 0


def rng(seed: int) -> random.Random:
    return random.Random(seed)
