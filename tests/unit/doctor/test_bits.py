"""The doctor's comparison of logits: silent on a runner that keeps the law, loud on one that
does not, and exact about where."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.toy_gguf import build_toy_model
from specd.device.runner import Runner
from specd.doctor.bits import NUM_NEW, Bits, prompt_lengths
from specd.doctor.finding import Finding, joined
from specd.engine.step_types import PaddedBatch
from specd.errors import NonFiniteLogits
from tests.unit.device.texts import KERNELS, load_any, load_runner, torch_threads

PROMPTS = [list(range(3, 103)), [7 + place % 90 for place in range(230)]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "toy.gguf"
    build_toy_model(path)
    return path


def found(bits: Bits) -> list[Finding]:
    return [comparison(random.Random(4)) for comparison in bits.comparisons()]


@pytest.mark.parametrize("kernels", [KERNELS[0], "torch"])
def test_nothing_differs_on_a_strict_runner(toy: Path, kernels: str) -> None:
    for finding in found(Bits(load_any(toy, "fp32", kernels), PROMPTS)):
        assert (finding.differences, finding.first) == (0, None), finding.name
        assert finding.compared >= 20, finding.name


def test_nearly_all_rows_differ_where_the_rules_are_off(toy: Path) -> None:
    for finding in found(Bits(load_runner(toy, "fp32", strict=False), PROMPTS)):
        assert finding.differences > finding.compared / 2, finding.name
        assert finding.first is not None and "logits differ, by up to" in finding.first


class Upset:
    """A runner with one logit that moves in its last bit where `count` positions are sampled."""

    def __init__(self, inner: Runner, count: int) -> None:
        self._inner = inner
        self._count = count
        self.layout, self.num_pages, self.config = inner.layout, inner.num_pages, inner.config

    def logits(self, batch: PaddedBatch) -> Tensor:
        logits = self._inner.logits(batch)
        if len(batch.sample_index) == self._count:
            logits[0, -1] = torch.nextafter(logits[0, -1], torch.tensor(torch.inf))
        return logits


@pytest.mark.parametrize("count", [2, 5, 16])
def test_one_bit_of_one_logit_is_seen_and_named(toy: Path, count: int) -> None:
    runner = load_any(toy, "fp32", KERNELS[0])
    upset = Upset(runner, count)
    bits = Bits(upset, PROMPTS)  # type: ignore[arg-type]  # the comparison asks for no more
    findings = [bits.alone(random.Random(seed)) for seed in range(4)]
    told = [finding.first for finding in findings if finding.differences]
    assert told
    assert all(first is not None and ": 1 of 512 logits differ" in first for first in told)


def test_logits_that_are_no_numbers_are_nothing_to_compare_with(toy: Path) -> None:
    runner = load_runner(toy, "fp32")
    runner.decoder.weights.layers[0].attn_norm[3] = torch.nan
    with pytest.raises(NonFiniteLogits):
        Bits(runner, PROMPTS)


def test_texts_fit_the_context_with_their_drafts() -> None:
    assert prompt_lengths(4096) == (100, 230)
    assert prompt_lengths(192) == (100,)
    for context in (192, 256, 290, 291, 512):
        assert max(prompt_lengths(context)) + NUM_NEW + 16 <= context


def test_findings_of_several_rounds_are_one_line_with_the_first_difference() -> None:
    rounds = [
        Finding("logits", "alone", 90, "rows", 0),
        Finding("tokens", "alone", 12, "answers", 1, "early"),
        Finding("logits", "alone", 92, "rows", 2, "here"),
        Finding("tokens", "alone", 12, "answers", 3, "late"),
    ]
    assert joined(rounds) == [
        Finding("logits", "alone", 182, "rows", 2, "here"),
        Finding("tokens", "alone", 24, "answers", 4, "early"),
    ]
