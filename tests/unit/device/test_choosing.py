"""What a row asks for beyond its tokens: processors, masks and log probabilities in a verdict."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specd.device.logprobs import token_logprob
from specd.device.sampler import SampleJob, TorchSampler
from specd.device.verifier import verify
from specd.engine.params import SamplingParams
from specd.engine.step_types import Choosing, RowFault, RowResult, TokenLogprob
from tests.unit.device.batches import (
    GREEDY,
    ReadyMasks,
    batch_of,
    mask_words,
    one_row_batch,
    planned,
    seen_tokens,
    verified,
)

VOCAB = 37
NO_MASK = RowResult(0, (), fault=RowFault.NO_MASK)
NOT_FINITE = RowResult(0, (), fault=RowFault.NOT_FINITE)
SAMPLED = SamplingParams(temperature=0.8, seed=3)


def normal(rows: int, seed: int = 0, vocab: int = VOCAB) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def one(
    logits: Tensor, choosing: Choosing, draft: Sequence[int] = (), *, position: int = 9
) -> RowResult:
    """The verdict on one row."""
    batch = one_row_batch(last_position=position, draft=draft, choosing=choosing)
    (result,) = verified(logits, batch)
    assert result is not None
    return result


def mass(entry: TokenLogprob) -> float:
    """The probability of all its alternatives together."""
    return math.fsum(math.exp(value) for _, value in entry.alternatives)


def masked(allowed: Sequence[Sequence[int]], sampling: SamplingParams = GREEDY) -> Choosing:
    return Choosing(sampling, masks=ReadyMasks(mask_words(allowed, VOCAB)))


# --- masks ---


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_only_allowed_tokens_are_chosen_at_each_position(sampling: SamplingParams) -> None:
    found = one(normal(3), masked([[4], [36], [5, 6]], sampling), draft=(4, 36))
    assert found.accepted == 2 and found.token_ids[:2] == (4, 36) and found.token_ids[2] in {5, 6}


def test_masks_are_asked_for_once_per_row() -> None:
    masks = ReadyMasks(mask_words([range(VOCAB)] * 4, VOCAB))
    one(normal(4), Choosing(SAMPLED, masks=masks, top_logprobs=3), draft=(1, 2, 3))
    assert masks.calls == 1


@pytest.mark.parametrize(
    "words",
    [RuntimeError("the matcher is lost"), mask_words([[1]], VOCAB), mask_words([[]] * 2, VOCAB)],
    ids=["raised", "a row short", "nothing allowed"],
)
def test_a_row_without_masks_is_flagged_alone(words: RuntimeError) -> None:
    bad = Choosing(GREEDY, masks=ReadyMasks(words))
    rows = [planned([1], 3), planned([1], 40, choosing=bad), planned([1], 7, sampling=SAMPLED)]
    logits, drafts = normal(4), [(), (2,), ()]
    healthy = verified(logits, batch_of([rows[0], planned([1], 40), rows[2]], drafts))
    found = verified(logits, batch_of(rows, drafts))
    assert found[1] == NO_MASK
    assert (found[0], found[2]) == (healthy[0], healthy[2])


def test_why_a_row_has_no_masks_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "specd.device"):
        one(normal(1), Choosing(GREEDY, masks=ReadyMasks(RuntimeError("the matcher is lost"))))
    assert "row has no masks" in caplog.text and "the matcher is lost" in caplog.text


def test_a_mask_that_allows_nothing_counts_where_the_row_gets_there() -> None:
    """Behind an illegal draft token a structure allows nothing, and nobody asks."""
    assert one(normal(3), masked([[4], [], []]), draft=(5, 6)) == RowResult(0, (4,))
    assert one(normal(3), masked([[4], [5], []]), draft=(4, 5)) == RowResult(1, (4, 5))
    assert one(normal(1), masked([[]])) == NO_MASK


def test_bans_of_every_token_are_no_fault_of_a_structure() -> None:
    banned = Choosing(GREEDY, banned=tuple(range(VOCAB)), num_banned=1)
    assert one(normal(1), banned) == NOT_FINITE


@pytest.mark.parametrize("vocab", [8193, 10000])
@pytest.mark.parametrize("top_k", [0, 1, 50])
def test_no_id_behind_the_vocabulary_comes_out_of_a_masked_row(vocab: int, top_k: int) -> None:
    """Bits beyond the vocabulary are set, and every id of the last tile is forbidden (a07)."""
    few = [3, 4096, vocab - 40]
    masks = ReadyMasks(mask_words([few], vocab))
    row = torch.full((1, vocab), -50.0)
    found = set()
    for position in range(100):
        sampling = SamplingParams(temperature=1.0, top_k=top_k, seed=3)
        result = one(row, Choosing(sampling, masks=masks), position=position)
        found.add(result.token_ids[0])
    assert found == set(few)


# --- processors ---


def test_the_verdict_reads_the_logits_and_writes_nothing() -> None:
    logits = normal(3)
    before = logits.clone()
    params = replace(SAMPLED, presence_penalty=1.0, logit_bias=((4, 3.0),))
    choosing = replace(masked([range(VOCAB)] * 3, params), seen=seen_tokens([1], [2]))
    one(logits, replace(choosing, top_logprobs=5, banned=(3,), num_banned=2), draft=(1, 2))
    assert torch.equal(logits, before)


def test_a_bias_decides_and_a_ban_outdoes_it() -> None:
    biased = replace(GREEDY, logit_bias=((36, 100.0),))
    assert one(normal(1), Choosing(biased)).token_ids == (36,)
    assert one(normal(1), Choosing(biased, banned=(36,), num_banned=1)).token_ids != (36,)


def test_a_bias_that_overflows_is_not_finite_and_no_crash() -> None:
    huge = Choosing(replace(GREEDY, logit_bias=((5, 3.4e38),)))
    assert one(torch.full((1, VOCAB), 1e38), huge) == NOT_FINITE


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_nan_behind_a_rejected_draft_decides_nothing(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, presence_penalty=1.0, seed=3)
    choosing = Choosing(params, seen_tokens([1], [2]), top_logprobs=2)
    logits = normal(3)
    plain = one(logits[:1], choosing)
    logits[1:] = math.nan
    wrong = (plain.token_ids[0] + 1) % VOCAB
    assert one(logits, choosing, draft=(wrong, wrong)) == plain


def test_a_nan_that_a_mask_forbids_is_still_a_nan() -> None:
    logits = normal(1)
    logits[0, 3] = math.nan
    assert one(logits, masked([[4]])) == NOT_FINITE


def test_all_kinds_of_top_k_in_one_batch_choose_as_alone() -> None:
    logits = normal(6)
    rows = [
        planned([1], 5 + number, sampling=replace(SAMPLED, top_k=top_k))
        for number, top_k in enumerate([0, 1, VOCAB, VOCAB + 1, (1 << 31) - 1, 3])
    ]
    together = verified(logits, batch_of(rows, [()] * 6))
    alone = [
        verified(logits[number, None], batch_of([row], [()]))[0] for number, row in enumerate(rows)
    ]
    assert list(together) == alone
    assert together[1] == RowResult(0, (int(logits[1].argmax()),))


def test_the_sampler_is_called_once_and_not_for_plain_greedy_rows() -> None:
    class Counting(TorchSampler):
        calls: list[int] = []

        def sample(self, jobs: Sequence[SampleJob]) -> list[int]:
            self.calls.append(len(jobs))
            return super().sample(jobs)

    biased = Choosing(replace(GREEDY, logit_bias=((1, 1.0),)))
    rows = [planned([1], 3), planned([1], 4, sampling=SAMPLED), planned([1], 5, choosing=biased)]
    sampler = Counting()
    verify(normal(6), batch_of(rows, [(1,), (2, 3), ()]), sampler)
    verify(normal(2), batch_of(rows[:1], [(1,)]), sampler)
    assert sampler.calls == [4]


# --- log probabilities ---


def test_raw_log_probabilities_are_the_model_s_own_whatever_was_asked() -> None:
    logits = normal(2)
    params = SamplingParams(temperature=2.0, top_k=4, presence_penalty=3.0, logit_bias=((7, 50.0),))
    found = one(logits, Choosing(params, seen_tokens([1], [2]), top_logprobs=3), draft=(7,))
    assert found.token_ids[0] == 7 and found.accepted == 1
    for row, token, entry in zip(logits, found.token_ids, found.logprobs, strict=True):
        assert entry == token_logprob(row, token, 3)
    assert found.logprobs[0].rank != 1


def test_processed_log_probabilities_are_of_what_was_kept() -> None:
    params = SamplingParams(temperature=0.7, top_k=6, seed=5, logit_bias=((7, 2.0),))
    choosing = Choosing(params, banned=(9,), num_banned=2, top_logprobs=VOCAB)
    found = one(normal(1), replace(choosing, processed_logprobs=True))
    (entry,) = found.logprobs
    assert len(entry.alternatives) == 6
    assert mass(entry) == pytest.approx(1, abs=1e-6)
    scores = normal(1)[0].double()
    scores[7] += 2
    scores[9] = -math.inf
    kept = scores.topk(6)
    wanted = torch.log_softmax(kept.values / 0.7, 0).tolist()
    assert [token for token, _ in entry.alternatives] == kept.indices.tolist()
    assert [value for _, value in entry.alternatives] == pytest.approx(wanted, abs=1e-5)


def test_processed_and_greedy_is_the_distribution_behind_the_bans() -> None:
    choosing = Choosing(GREEDY, banned=(9,), num_banned=1, top_logprobs=VOCAB)
    found = one(normal(1), replace(choosing, processed_logprobs=True))
    (entry,) = found.logprobs
    assert entry.rank == 1 and entry.alternatives[0][0] == found.token_ids[0]
    assert sorted(token for token, _ in entry.alternatives) == [*range(9), *range(10, VOCAB)]
    assert mass(entry) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("processed", [False, True])
def test_greedy_tokens_are_first_and_all_that_equal_them_share_the_rank(processed: bool) -> None:
    logits = normal(1)
    logits[0, [30, 12]] = 50.0
    choosing = Choosing(GREEDY, top_logprobs=3, processed_logprobs=processed)
    (entry,) = one(logits, choosing).logprobs
    assert (entry.token_id, entry.rank) == (12, 1)
    assert [token for token, _ in entry.alternatives][:2] == [12, 30]
    assert token_logprob(logits[0], 30, 0).rank == 1


@pytest.mark.parametrize("top", [None, 0, 2])
def test_there_is_one_entry_per_token_where_asked_and_none_else(top: int | None) -> None:
    logits = torch.nn.functional.one_hot(torch.tensor([4, 5, 6, 7]), VOCAB).float()
    for draft in ((), (4,), (4, 5, 9), (4, 5, 6)):
        found = one(logits[: len(draft) + 1], Choosing(GREEDY, top_logprobs=top), draft=draft)
        assert len(found.logprobs) == (0 if top is None else len(found.token_ids))
        assert all(len(entry.alternatives) == top for entry in found.logprobs)
        assert found.logprobs == () or [entry.token_id for entry in found.logprobs] == list(
            found.token_ids
        )


def test_a_log_probability_is_the_same_alone_and_in_company() -> None:
    vocab = 1001  # rows of a batch lie at odd addresses
    logits = normal(9, vocab=vocab)
    choosing = Choosing(SAMPLED, top_logprobs=20, processed_logprobs=True)
    rows = [planned([1], 5, choosing=choosing) for _ in range(9)]
    together = verified(logits, batch_of(rows, [()] * 9))
    for row, found in zip(logits, together, strict=True):
        alone = verified(row[None].clone(), batch_of(rows[:1], [()]))
        assert alone == (found,)


# --- prompts ---


def test_a_row_that_only_scores_has_log_probabilities_and_no_tokens() -> None:
    logits = normal(3)
    row = planned([5, 6, 7], 0, samples=False, score_targets=[6, 7, 8], score_top=2)
    (found,) = verified(logits, batch_of([row], [()]))
    wanted = tuple(token_logprob(logits[at], token, 2) for at, token in enumerate([6, 7, 8]))
    assert found == RowResult(0, (), prompt_logprobs=wanted)


def test_a_row_scores_what_it_must_and_samples_behind_it() -> None:
    logits = normal(4)
    choosing = Choosing(GREEDY, top_logprobs=0)
    last = int(logits[2].argmax())
    row = planned([5, 6, 7], 0, choosing=choosing, score_targets=[6, 7], score_top=1)
    silent = planned([1, 2], 4, samples=False)
    found = verified(logits, batch_of([silent, row], [(), (last,)]))
    assert found[0] is None and found[1] is not None
    assert found[1].token_ids == (last, int(logits[3].argmax()))
    assert found[1].logprobs[0] == token_logprob(logits[2], last, 0)
    assert found[1].prompt_logprobs == tuple(
        token_logprob(logits[at], token, 1) for at, token in enumerate([6, 7])
    )


def test_prompt_log_probabilities_are_raw_whatever_the_request_penalises() -> None:
    params = replace(GREEDY, presence_penalty=5.0, logit_bias=((6, 50.0),))
    choosing = Choosing(params, seen_tokens([5, 6], []), processed_logprobs=True, top_logprobs=0)
    row = planned([5, 6], 0, choosing=choosing, score_targets=[6])
    logits = normal(2)
    (found,) = verified(logits, batch_of([row], [()]))
    assert found is not None and found.prompt_logprobs == (token_logprob(logits[0], 6, 0),)


@pytest.mark.parametrize("samples", [False, True])
def test_a_scored_position_that_is_not_finite_flags_its_row(samples: bool) -> None:
    row = planned([5, 6, 7], 0, samples=samples, score_targets=[6, 7])
    logits = normal(3 if samples else 2)
    logits[1, 4] = math.nan
    beside = planned([1], 3)
    found = verified(torch.cat([logits, normal(1)]), batch_of([row, beside], [(), ()]))
    assert found == (NOT_FINITE, RowResult(0, (int(normal(1)[0].argmax()),)))
