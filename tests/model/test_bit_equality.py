"""The arithmetic is pinned, on the real model: no bit of a row of logits depends on its company.

The core, which is the default, and torch; the 1.5B model on the core alone. The reference is one
position at a time, alone. Two texts of the model's own greedy tokens cross the boundaries of
the KV length: 45 tokens behind a prompt of 100, and 45 behind one of 230. Where torch's rules are
switched off the same check has to fail, or it would prove nothing.
Uses torch's own number of threads, as the daemon does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from specd.device.core_probe import probe_core
from specd.device.core_runner import CoreRunner
from specd.device.probe import probe
from specd.model.formats import WeightFormat
from specd.model.gguf_file import GGUFFile
from specd.model.pull import pull
from specd.text.tokenizer import Tokenizer
from tests.support.toy_gguf import TRAINING_TEXT
from tests.unit.device.texts import (
    CORE_KERNELS,
    Feeder,
    Part,
    Text,
    differing,
    load_any,
    load_runner,
    random_chunks,
    random_ids,
    torch_threads,
)

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
PROMPTS = (100, 230)
GENERATED = 45


@dataclass(frozen=True)
class Setting:
    """One weight format: its runner and the two texts with their reference logits."""

    feeder: Feeder
    references: tuple[Text, ...]

    def rows_differing(self, texts: list[Text]) -> int:
        return sum(
            differing(text, wanted, start=prompt)
            for text, wanted, prompt in zip(texts, self.references, PROMPTS, strict=True)
        )


def prompt_ids(path: Path) -> list[int]:
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(path).metadata)
    ids = tokenizer.encode(2 * TRAINING_TEXT, parse_special=False, add_special=False)
    assert len(ids) >= max(PROMPTS)
    return ids


def generate(feeder: Feeder, prompt: list[int]) -> Text:
    """Greedy, one position at a time; a wandering text is a better test than a loop."""
    text = Text(list(prompt))
    feeder.run([Part(text, len(prompt), chunk=True)])
    ids = list(prompt)
    while len(ids) < len(prompt) + GENERATED:
        ids.append(int(text.logits[len(ids) - 1].argmax()))
        text.ids = ids
        feeder.run([Part(text, 1)])
    feeder.close(text)
    return text


def references(feeder: Feeder, path: Path) -> Setting:
    ids = prompt_ids(path)
    return Setting(feeder, tuple(generate(feeder, ids[:count]) for count in PROMPTS))


@pytest.fixture(scope="module", autouse=True)
def as_the_daemon_runs() -> Iterator[None]:
    with torch_threads(DEFAULT_THREADS):
        yield


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def setting(request: pytest.FixtureRequest, as_the_daemon_runs: None) -> Setting:
    kernels, weights, model = request.param
    path = pull(model).path
    return references(Feeder(load_any(path, weights, kernels)), path)


def random_widths(setting: Setting, seed: int, *others: Text) -> list[Text]:
    """Both texts side by side: chunked prompts, then random widths with wrong drafts."""
    rng = random.Random(seed)
    texts = [Text(reference.ids) for reference in setting.references]
    for text, prompt in zip(texts, PROMPTS, strict=True):
        for size in random_chunks(prompt, rng, longest=120):
            setting.feeder.run([Part(text, size, chunk=True)])
    setting.feeder.random_widths([*texts, *others], rng)
    return texts


def test_random_widths_with_wrong_drafts_differ_in_no_row(setting: Setting) -> None:
    for number, reference in enumerate(setting.references):
        text = Text(reference.ids)
        setting.feeder.run([Part(text, PROMPTS[number], chunk=True)])
        setting.feeder.random_widths([text], random.Random(number))
        assert differing(text, reference, start=PROMPTS[number]) == 0


def test_company_and_chunked_prompts_differ_in_no_row(setting: Setting) -> None:
    neighbours = [
        Text(random_ids(setting.feeder.runner.config.vocab_size, length, seed=length))
        for length in (20, 60)
    ]
    assert setting.rows_differing(random_widths(setting, 1, *neighbours)) == 0


def test_an_answer_that_comes_back_as_a_prompt_differs_in_no_row(setting: Setting) -> None:
    """The next turn and a resume after preemption recompute answers as prompts."""
    rng = random.Random(2)
    for reference in setting.references:
        text = setting.feeder.in_chunks(
            reference.ids, random_chunks(len(reference.ids), rng, longest=30)
        )
        assert len(text.logits.keys() & reference.logits.keys()) > 1
        assert differing(text, reference) == 0


def test_the_probe_finds_nothing(setting: Setting) -> None:
    runner = setting.feeder.runner
    report = probe_core(runner) if isinstance(runner, CoreRunner) else probe(runner)
    assert report.findings == ()


@pytest.mark.model
@pytest.mark.parametrize("weights", ["fp32", "bf16"])
def test_the_check_fails_where_the_rules_are_off(
    weights: WeightFormat, default_model_path: Path
) -> None:
    runner = load_runner(default_model_path, weights, strict=False)
    relaxed = references(Feeder(runner), default_model_path)
    assert relaxed.rows_differing(random_widths(relaxed, 1)) > 0
    assert not probe(runner).invariant
