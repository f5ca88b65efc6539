"""Attention in the core reads what a query sees and nothing else, and no bit depends on company.

Unlike the torch path, which keeps all memory finite, the core promises this whatever lies in memory
that no query sees. So here that memory is full of NaN, and the bits stay.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from specd.core.decoder import CoreRow
from specd.core.layouts import PAGE
from specd.device.core_probe import probe_core
from specd.device.core_runner import CoreRunner
from specd.device.texts import Feeder, Part, Text, differing, random_chunks, random_ids
from specd.engine.step_types import PaddedBatch
from specd.kv.pages import PAGE_SIZE
from specd.model.formats import WeightFormat
from tests.unit.core.support import ISAS
from tests.unit.core.toys import FAMILIES, HEADS, VOCAB, WINDOWS, Toy, build
from tests.unit.device.texts import load_core

pytestmark = pytest.mark.usefixtures("needs_core")

LENGTH = 290  # crosses a chunk of 256
NAN = float("nan")
IDS = random_ids(VOCAB, LENGTH, seed=3)
QUANTS: Toy = {"linear_type": "Q4_1", "embed_type": "Q8_0"}
TOYS = {
    "llama": FAMILIES["llama"],
    "qwen3": FAMILIES["qwen3"],
    "gemma3": FAMILIES["gemma3"],
    "group of 9": HEADS["9 over 1 of 32"],
    "group of 3": HEADS["9 over 3 of 32"],
    "window of 31": WINDOWS["window of 31"],
    "window of 257": WINDOWS["window of 257"],
}


# Every toy with the quantised weights of its file; few in full precision, whose attention is alike.
CASES = [
    *((name, "auto") for name in TOYS),
    *((name, weights) for name in ("gemma3", "group of 3") for weights in ("bf16", "fp32")),
]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, WeightFormat]:
    name, weights = request.param
    return build(tmp_path_factory.mktemp("toy"), TOYS[name] | QUANTS), weights


@pytest.fixture(scope="module", params=ISAS, ids=str)
def feeder(
    request: pytest.FixtureRequest, case: tuple[Path, WeightFormat], one_thread: None
) -> Feeder:
    return Feeder(load_core(*case, request.param))


@pytest.fixture(scope="module")
def alone(feeder: Feeder) -> Text:
    """The reference: one position at a time, alone, in memory that nobody used."""
    return feeder.one_at_a_time(IDS)


def fill_with_nan(feeder: Feeder) -> None:
    cache_of(feeder).fill_(NAN)


def cache_of(feeder: Feeder) -> torch.Tensor:
    """[layer, page, K or V, kv_head, dim * token]; the only place where tests can plant a NaN."""
    return feeder.runner._cache


def neighbours() -> list[Text]:
    return [Text(random_ids(VOCAB, length, seed=length)) for length in (150, 33, 270)]


def test_nan_in_all_unused_memory_changes_no_bit(feeder: Feeder, alone: Text) -> None:
    """Steps of any width with wrong drafts, in memory that was NaN before them."""
    for seed in (1, 2):
        fill_with_nan(feeder)
        text = Text(IDS)
        feeder.random_widths([text], random.Random(seed))
        assert text.logits.keys() == alone.logits.keys()
        assert differing(text, alone) == 0


def test_neighbours_and_their_prompts_change_no_bit(feeder: Feeder, alone: Text) -> None:
    """Prompts of neighbours run in the step in which the text decodes."""
    fill_with_nan(feeder)
    rng = random.Random(6)
    text, others = Text(IDS), neighbours()
    while any(each.left for each in (text, *others)):
        parts = [
            Part(each, min(each.left, rng.randint(1, 40)), chunk=True)
            for each in others
            if each.left
        ]
        if text.left:
            count = min(text.left, rng.randint(1, 9))
            parts.append(Part(text, count, tuple(random_ids(VOCAB, rng.randint(0, 5), seed=count))))
        rng.shuffle(parts)
        feeder.run(parts)
    for each in (text, *others):
        feeder.close(each)
    assert text.logits.keys() == alone.logits.keys()
    assert differing(text, alone) == 0


def test_chunks_and_scattered_pages_change_no_bit(feeder: Feeder, alone: Text) -> None:
    """The pool hands out pages in the order in which others gave them back."""
    dirty = neighbours()
    feeder.random_widths(dirty, random.Random(7))
    for chunks in ([LENGTH], [1, LENGTH - 1], [255, 35], [256, 34], [257, 33]):
        assert differing(feeder.in_chunks(IDS, chunks), alone) == 0
    chunks = random_chunks(LENGTH, random.Random(8))
    text = Text(IDS)
    for size in chunks:
        feeder.run([Part(text, size, chunk=True)])
    assert text.pages != sorted(text.pages)
    assert differing(text, alone) == 0
    feeder.close(text)


def test_pages_of_others_may_be_nan(feeder: Feeder, alone: Text) -> None:
    """A row whose K and V are NaN runs in every step; its neighbour keeps its bits."""
    fill_with_nan(feeder)
    text, broken = Text(IDS), Text(random_ids(VOCAB, LENGTH, seed=1))
    feeder.run([Part(broken, 40, chunk=True)])
    cache_of(feeder)[:, broken.pages] = NAN
    rng = random.Random(9)
    while text.left:
        parts = [Part(text, min(text.left, rng.randint(1, 12)))]
        if broken.left:
            parts.insert(rng.randint(0, 1), Part(broken, 1))
        feeder.run(parts)
    assert broken.logits[40].isnan().all()
    assert differing(text, alone) == 0
    for each in (text, broken):
        feeder.close(each)


@pytest.mark.parametrize("isa", ISAS)
def test_pages_may_lie_in_any_order(tmp_path: Path, isa: str) -> None:
    """The same step, its pages named by hand: forwards, backwards, far apart."""
    decoder = load_core(build(tmp_path, {}), "fp32", isa).decoder
    tokens = np.array(IDS)
    count = -(-LENGTH // PAGE)
    found = []
    for pages in (range(count), range(30, 30 - count, -1), range(1, 40, 4)):
        cache = torch.full(decoder.cache_shape(40), NAN)
        logits = torch.empty(LENGTH, VOCAB)
        row = CoreRow(0, LENGTH, pages[:count])
        decoder.run(tokens, [row], np.arange(LENGTH), cache, logits)
        untouched = sorted(set(range(40)) - set(row.pages))
        assert cache[:, untouched].isnan().all()
        found.append(logits)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("isa", ISAS)
def test_logits_come_in_the_order_in_which_they_are_wanted(tmp_path: Path, isa: str) -> None:
    decoder = load_core(build(tmp_path, QUANTS), "auto", isa).decoder
    cache = torch.zeros(decoder.cache_shape(10), dtype=decoder.weights.kv_dtype)
    rows = [CoreRow(0, 40, range(2)), CoreRow(0, 20, range(5, 6))]
    everything = torch.empty(60, VOCAB)
    decoder.run(np.array(IDS[:60]), rows, np.arange(60), cache, everything)
    for wanted in ([59], [3, 41, 7], [], [39, 59, 0, 20]):
        logits = torch.full((len(wanted) + 1, VOCAB), NAN)
        decoder.run(np.array(IDS[:60]), rows, np.array(wanted, np.int64), cache, logits)
        assert torch.equal(logits[:-1], everything[wanted])
        assert logits[-1].isnan().all()


@pytest.mark.parametrize("num_pages", [1, 2, 3, 4, 64])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_probe_finds_nothing_here(tmp_path: Path, name: str, num_pages: int) -> None:
    path = build(tmp_path, FAMILIES[name] | QUANTS)
    for isa in ISAS:
        report = probe_core(load_core(path, "auto", isa, num_pages=num_pages))
        assert report.findings == () and report.num_checks > 1


def test_the_probe_finds_logits_that_depend_on_their_company(tmp_path: Path) -> None:
    runner = load_core(build(tmp_path, QUANTS), "auto", ISAS[0])

    class Dependent(CoreRunner):
        """Off by one step of fp32 where a step has more rows than one."""

        def logits(self, batch: PaddedBatch) -> torch.Tensor:
            made = super().logits(batch)
            return made * (1 + 2**-22) if len(batch.rows) > 1 else made

    assert not probe_core(Dependent(runner.decoder, num_pages=8)).invariant


def test_a_page_has_as_many_positions_as_the_allocator_says() -> None:
    assert PAGE == PAGE_SIZE


@pytest.mark.parametrize(("weights", "holds"), [("auto", False), ("fp32", True)])
def test_a_value_that_the_cache_cannot_hold_makes_no_number_of_its_logits(
    tmp_path: Path, one_thread: None, weights: WeightFormat, holds: bool
) -> None:
    """fp16 ends at 65,504: a value beyond fails its request, where the nearest half would lie."""
    feeder = Feeder(load_core(build(tmp_path, FAMILIES["qwen2"] | QUANTS), weights, ISAS[0]))
    bias = feeder.runner.decoder.weights.layers[0].qkv_bias
    assert bias is not None
    bias[-1] = 1e6
    rows = feeder.one_at_a_time(IDS[:5]).logits.values()
    assert [bool(row.isfinite().all()) for row in rows] == [holds] * len(rows)
