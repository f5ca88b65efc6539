"""The arithmetic is pinned, on the real model: no bit of a row of logits depends on its company.

The core, which is the default, and torch; the 1.5B model on the core alone. What is compared is
what `specd doctor --invariance` compares on its user's machine: texts of the model's own greedy
tokens behind prompts that end before multiples of 128, one position at a time and alone against
every other way. Where torch's rules are switched off the same check has to fail, or it would prove
nothing. Uses torch's own number of threads, as the daemon does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.toy_gguf import TRAINING_TEXT
from specd.device.runner import Runner
from specd.doctor.bits import PROMPT_LENGTHS, Bits
from specd.doctor.checkup import full_probe
from specd.doctor.finding import Finding
from specd.model.formats import WeightFormat
from specd.model.gguf_file import GGUFFile
from specd.model.pull import pull
from specd.text.tokenizer import Tokenizer
from tests.unit.device.texts import CORE_KERNELS, load_any, load_runner, torch_threads

# What a machine chooses by itself comes first; int8 and int4 hold this file as auto does.
FORMATS: tuple[WeightFormat, ...] = ("auto", "bf16", "fp32")
CASES = [
    *(
        pytest.param((kernels, weights, "smollm2-135m"), marks=pytest.mark.model)
        for kernels in (*CORE_KERNELS[:1], "torch")
        for weights in FORMATS
    ),
    # One instruction set more: its kernels for quantised weights are others.
    *(
        pytest.param((kernels, "auto", "smollm2-135m"), marks=pytest.mark.model)
        for kernels in CORE_KERNELS[1:]
    ),
    *(
        pytest.param((kernels, "auto", "qwen2.5-coder-1.5b"), marks=pytest.mark.large)
        for kernels in CORE_KERNELS[:1]
    ),
]

DEFAULT_THREADS = torch.get_num_threads()
MIN_ROWS = 20  # that a comparison finds in both; the least are the ends of prompt chunks


def bits_of(runner: Runner, path: Path) -> Bits:
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(path).metadata)
    ids = tokenizer.encode(2 * TRAINING_TEXT, parse_special=False, add_special=False)
    assert len(ids) >= max(PROMPT_LENGTHS)
    return Bits(runner, [ids[:length] for length in PROMPT_LENGTHS])


@pytest.fixture(scope="module", autouse=True)
def as_the_daemon_runs() -> Iterator[None]:
    with torch_threads(DEFAULT_THREADS):
        yield


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def runner_and_bits(
    request: pytest.FixtureRequest, as_the_daemon_runs: None
) -> tuple[Runner, Bits]:
    kernels, weights, model = request.param
    path = pull(model).path
    runner = load_any(path, weights, kernels)
    return runner, bits_of(runner, path)


@pytest.fixture
def bits(runner_and_bits: tuple[Runner, Bits]) -> Bits:
    return runner_and_bits[1]


def assert_equal(finding: Finding) -> None:
    assert (finding.differences, finding.first) == (0, None)
    assert finding.compared >= MIN_ROWS


def test_random_widths_with_wrong_drafts_differ_in_no_row(bits: Bits) -> None:
    assert_equal(bits.alone(random.Random(0)))


def test_company_and_chunked_prompts_differ_in_no_row(bits: Bits) -> None:
    assert_equal(bits.in_company(random.Random(1)))


def test_an_answer_that_comes_back_as_a_prompt_differs_in_no_row(bits: Bits) -> None:
    """The next turn and a resume after preemption recompute answers as prompts."""
    assert_equal(bits.as_prompts(random.Random(2)))


def test_the_full_probe_finds_nothing(runner_and_bits: tuple[Runner, Bits]) -> None:
    assert full_probe(runner_and_bits[0]).findings == ()


@pytest.mark.model
@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_the_check_fails_where_the_rules_are_off(
    weights: WeightFormat, default_model_path: Path
) -> None:
    runner = load_runner(default_model_path, weights, strict=False)
    relaxed = bits_of(runner, default_model_path)
    for comparison in relaxed.comparisons():
        assert comparison(random.Random(1)).differences > 0
    assert not full_probe(runner).invariant
