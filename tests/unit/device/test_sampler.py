"""What every sampler promises: tokens and scores are functions of one job."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from specd.device.noise import gumbel, key_tensor
from specd.device.sampler import SampleJob, Sampler, TorchSampler
from specd.engine.params import SamplingParams
from specd.engine.seeds import key_words

PARAMS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=9e-7, seed=3),
    SamplingParams(temperature=0.7, seed=3),
    SamplingParams(temperature=2.0, top_k=1, seed=3),
    SamplingParams(temperature=1.3, top_k=7, seed=3),
    SamplingParams(temperature=0.9, top_p=0.8, seed=3),
    SamplingParams(temperature=1.0, min_p=0.05, seed=3),
    SamplingParams(temperature=1.5, top_k=30, top_p=0.9, min_p=0.01, seed=3),
]


@pytest.fixture(params=[TorchSampler])
def sampler(request: pytest.FixtureRequest) -> Sampler:
    built: Sampler = request.param()
    return built


def jobs_for(rows: Iterable[Tensor], params: SamplingParams) -> list[SampleJob]:
    return [SampleJob(row, params, 11 + at) for at, row in enumerate(rows)]


def normal(rows: int, vocab: int = 501) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1)) * 3


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_a_token_is_the_argmax_of_its_scores_and_the_published_noise(
    sampler: Sampler, params: SamplingParams
) -> None:
    for job in jobs_for(normal(40), params):
        scores = sampler.scores(job)
        if params.temperature > 1e-6:
            words = key_words(params.seed, job.position)
            scores = scores + gumbel(key_tensor([words]), len(scores))[0]
        assert sampler.sample([job]) == [int(scores.argmax())]


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_a_job_is_the_same_alone_in_company_and_at_any_address(
    sampler: Sampler, params: SamplingParams
) -> None:
    jobs = jobs_for(normal(9), params)  # 501 entries: the rows of a matrix lie at odd addresses
    alone = [SampleJob(job.logits.clone(), params, job.position) for job in jobs]
    assert sampler.sample(jobs) == [sampler.sample([job])[0] for job in alone]
    for job, other in zip(jobs, alone, strict=True):
        assert torch.equal(sampler.scores(job), sampler.scores(other))


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_jobs_are_only_read(sampler: Sampler, params: SamplingParams) -> None:
    rows = normal(3)
    before = rows.clone()
    sampler.sample(jobs_for(rows, params))
    for job in jobs_for(rows, params):
        sampler.scores(job)
    assert torch.equal(rows, before)


def test_jobs_of_all_kinds_in_one_call_are_answered_in_order(sampler: Sampler) -> None:
    rows = normal(len(PARAMS))
    jobs = [SampleJob(row, params, 5) for row, params in zip(rows, PARAMS, strict=True)]
    assert sampler.sample(jobs) == [sampler.sample([job])[0] for job in jobs]
    assert sampler.sample([]) == []


def test_scores_are_scaled_from_the_largest_logit_and_removed_tokens_are_impossible(
    sampler: Sampler,
) -> None:
    row = torch.tensor([1.0, 3.0, 2.0, -1.0])
    job = SampleJob(row, SamplingParams(temperature=2.0, top_k=3), 1)
    assert sampler.scores(job).tolist() == [-1.0, 0.0, -0.5, -math.inf]


def test_greedy_scores_remove_nothing(sampler: Sampler) -> None:
    row = torch.tensor([1.0, 3.0, 2.0, -math.inf])
    params = SamplingParams(temperature=0, top_k=1, top_p=0.1, min_p=0.9)
    assert sampler.scores(SampleJob(row, params, 1)).tolist() == [-2.0, 0.0, -1.0, -math.inf]


@pytest.mark.parametrize("seed", range(3))
def test_hot_but_top_k_of_one_is_greedy(sampler: Sampler, seed: int) -> None:
    rows = normal(30)
    params = SamplingParams(temperature=2.0, top_k=1, seed=seed)
    assert sampler.sample(jobs_for(rows, params)) == rows.argmax(1).tolist()


@pytest.mark.parametrize("vocab", [1, 3, 31, 33, 8193, 10000])
def test_no_token_is_outside_the_vocabulary_where_few_are_possible(
    sampler: Sampler, vocab: int
) -> None:
    row = torch.full((vocab,), -math.inf)
    possible = sorted({0, vocab // 2, max(0, vocab - 9)})
    row[possible] = 0.0
    for params in PARAMS:
        found = sampler.sample(jobs_for([row] * 20, params))
        assert set(found) <= set(possible)
