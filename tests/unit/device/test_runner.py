"""A runner keeps rows out of each other's way, whatever a row, a draft or old memory holds.

Both runners, but for how torch does it: it keeps every value finite that a row can reach. The core
reads no others, which tests/unit/core shows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.toy_gguf import build_toy_model
from specd.device.eager import EagerRunner, packed_buckets
from specd.device.texts import Feeder, Part, Text, random_ids
from specd.engine.step_types import Choosing, PaddedBatch, RowFault, RowResult, StepResult
from specd.kv.pages import RESERVED_PAGES, SCRATCH_PAGE
from tests.unit.device.batches import (
    GREEDY,
    ReadyMasks,
    batch_of,
    mask_words,
    planned,
    verified,
)
from tests.unit.device.texts import KERNELS, AnyRunner, load_any, load_runner

NAN = float("nan")
POISON = 77  # a token whose embedding is NaN


@pytest.fixture(scope="module")
def toy_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "toy.gguf"
    build_toy_model(path, tied=False, nan_rows=[POISON])
    return path


@pytest.fixture(params=KERNELS)
def feeder(request: pytest.FixtureRequest, toy_path: Path, one_thread: None) -> Feeder:
    return Feeder(load_any(toy_path, "fp32", request.param, num_pages=16))


@pytest.fixture
def eager(toy_path: Path, one_thread: None) -> Feeder:
    return Feeder(load_runner(toy_path, "fp32", num_pages=16))


def healthy(count: int, seed: int) -> list[int]:
    return [token + (token == POISON) for token in random_ids(512, count, seed)]


def cache_of(feeder: Feeder) -> torch.Tensor:
    """[layer, page, ...] of the core, [layer, page, token, K or V, kv_head, dim] of torch.

    The only place where tests can plant a NaN.
    """
    return feeder.runner._cache


def logits_after(feeder: Feeder, ids: list[int]) -> torch.Tensor:
    text = feeder.in_chunks(ids, [len(ids)])
    return text.logits[len(ids) - 1]


def step(feeder: Feeder, parts: list[Part]) -> tuple[PaddedBatch, StepResult]:
    """A step with its verification; the texts stay where they are."""
    batch = feeder.batch(parts)
    return batch, feeder.runner.step(batch)


def test_nothing_reads_the_scratch_page(eager: Feeder) -> None:
    ids = healthy(37, seed=1)  # the bucket is 40: three pads
    wanted = logits_after(eager, ids)
    cache_of(eager)[:, SCRATCH_PAGE] = NAN
    assert torch.equal(logits_after(eager, ids), wanted)


def test_pads_write_to_the_scratch_page_alone(eager: Feeder) -> None:
    text = Text(healthy(37, seed=1))
    eager.run([Part(text, 37, chunk=True)])
    written = cache_of(eager).abs().amax((0, 2, 3, 4, 5)).nonzero().flatten().tolist()
    assert sorted([SCRATCH_PAGE, *text.pages]) == written


def test_a_nan_in_stale_pages_harms_nobody_who_gets_them(feeder: Feeder) -> None:
    ids = healthy(70, seed=2)
    wanted = logits_after(feeder, ids)
    cache_of(feeder)[:, RESERVED_PAGES:] = NAN
    assert torch.equal(logits_after(feeder, ids), wanted)


def test_without_zeroing_a_nan_would_pass_the_mask(eager: Feeder) -> None:
    """What the zeroing is for: masking alone does not protect."""
    text = Text(healthy(5, seed=2))
    eager.run([Part(text, 4, chunk=True)])
    cache_of(eager)[:, text.pages[0], 20] = NAN
    eager.run([Part(text, 1)])
    assert torch.isnan(text.logits[4]).all()


def test_a_poisoned_row_is_flagged_and_its_neighbours_keep_their_bits(feeder: Feeder) -> None:
    ids = [healthy(count, seed=count) for count in (9, 40, 21)]
    wanted = [logits_after(feeder, each) for each in ids]
    texts = [Text(ids[0]), Text([*ids[1][:-1], POISON]), Text(ids[2])]
    parts = [Part(text, len(text.ids), chunk=True) for text in texts]
    _, result = step(feeder, parts)
    assert result.rows[1] == RowResult(0, (), fault=RowFault.NOT_FINITE)
    for number in (0, 2):
        assert result.rows[number] == RowResult(0, (int(wanted[number].argmax()),))
    feeder.run(parts)
    assert torch.isnan(texts[1].logits[39]).all()
    assert torch.equal(texts[0].logits[8], wanted[0])
    assert torch.equal(texts[2].logits[20], wanted[2])


def test_a_poisoned_row_leaves_nothing_behind_in_its_pages(feeder: Feeder) -> None:
    ids = healthy(33, seed=4)
    wanted = logits_after(feeder, ids)
    logits_after(feeder, [*ids[:-1], POISON])
    assert torch.equal(logits_after(feeder, ids), wanted)


def test_a_draft_that_the_model_chokes_on_harms_nobody(feeder: Feeder) -> None:
    """A drafter can be wrong and nothing else: neither this step nor a later one goes NaN."""
    ids = healthy(12, seed=5)
    plain = feeder.one_at_a_time(ids)
    text = Text(ids)
    feeder.run([Part(text, 6, chunk=True)])
    _, result = step(feeder, [Part(text, 1, wrong=(POISON, POISON, 3))])
    assert result.rows == (RowResult(0, (int(plain.logits[6].argmax()),)),)
    text.computed += 1
    while text.left:
        feeder.run([Part(text, 1)])
    assert all(torch.equal(text.logits[at], plain.logits[at]) for at in range(7, 12))


def test_a_draft_that_the_model_chokes_on_costs_neither_masks_nor_log_probabilities(
    feeder: Feeder,
) -> None:
    """torch runs such a row again without its draft, and all that was asked for with it."""
    runner, ids = feeder.runner, healthy(5, seed=5)
    wanted, found = (
        runner.step(scored(runner, ids, draft)).rows for draft in ((), (POISON, POISON, 3))
    )
    assert found == wanted
    (result,) = found
    assert result is not None and result.token_ids == (400,)
    assert len(result.logprobs) == 1 and len(result.prompt_logprobs) == 4


def scored(runner: AnyRunner, ids: list[int], draft: tuple[int, ...]) -> PaddedBatch:
    """A prompt with its log probabilities, and masks that allow one token."""
    words = mask_words([[400]] * (len(draft) + 1), 512)
    choosing = Choosing(GREEDY, top_logprobs=2, masks=ReadyMasks(words))
    row = planned(ids, 0, choosing=choosing, score_targets=ids[1:], score_top=1)
    return batch_of([row], [draft], runner.layout)


def test_the_draft_above_is_one_that_torch_judges_again(eager: Feeder) -> None:
    batch = scored(eager.runner, healthy(5, seed=5), (POISON, POISON, 3))
    assert verified(eager.runner.logits(batch), batch)[0] == RowResult(
        0, (), fault=RowFault.NOT_FINITE
    )


def test_rejected_drafts_leave_zeros_and_accepted_ones_stay(eager: Feeder) -> None:
    ids = healthy(8, seed=6)
    text = Text(ids)
    eager.run([Part(text, 8, chunk=True)])
    right = int(text.logits[7].argmax())
    text.ids = [*ids, right]
    step(eager, [Part(text, 1)])  # alone: what follows `right`
    follows = int(logits_after(eager, text.ids).argmax())
    wrong = (follows + 1) % POISON
    _, result = step(eager, [Part(text, 1, wrong=(follows, wrong, wrong))])
    assert result.rows[0] is not None and result.rows[0].accepted == 1
    used = cache_of(eager)[0, text.pages[0]].abs().amax((1, 2, 3)).bool().tolist()
    assert used == [True] * 10 + [False] * 22


def test_a_step_that_samples_nothing_has_no_logits(feeder: Feeder) -> None:
    text = Text(healthy(20, seed=7))
    batch = feeder.batch([Part(text, 20, chunk=True)])
    rows = tuple(replace(row, samples=False) for row in batch.rows)
    silent = replace(batch, rows=rows, sample_index=batch.sample_index[:0])
    assert feeder.runner.logits(silent).shape == (0, 512)
    assert feeder.runner.step(silent).rows == (None,)


def test_a_step_says_how_long_it_took(feeder: Feeder) -> None:
    _, result = step(feeder, [Part(Text(healthy(3, seed=8)), 3, chunk=True)])
    assert 0 < result.device_time_s < 60


@pytest.mark.parametrize("limit", [1, 5, 256, 300, 512, 700])
def test_packed_buckets_end_at_the_step_s_limit(limit: int) -> None:
    buckets = packed_buckets(limit)
    assert buckets[-1] == limit and list(buckets) == sorted(set(buckets))


def test_two_runners_of_one_decoder_share_no_cache(eager: Feeder) -> None:
    first = eager.runner
    assert isinstance(first, EagerRunner)
    second = EagerRunner(first.decoder, num_pages=16, layout=first.layout, strict=True)
    logits_after(eager, healthy(10, seed=9))
    assert not second._cache.any()
