"""What a job gives does not depend on company, threads, address or instruction set, to the bit."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

from specd.core.sampler import CoreSampler
from specd.device.sampler import SampleJob
from specd.engine.step_types import TokenLogprob
from tests.unit.core.choices import F32, ISAS, KINDS, PARAMS, job_of, row_of, samplers, seeded
from tests.unit.core.support import same_bits, shifted

pytestmark = pytest.mark.usefixtures("needs_core")

VOCABS = [1, 17, 300, 8193, 32003]
Result = tuple[int, F32, TokenLogprob]


def result(sampler: CoreSampler, job: SampleJob) -> Result:
    token = sampler.sample([job])[0]
    return token, sampler.scores(job).numpy(), sampler.token_logprob(job.logits, token, 9)


def same(one: Result, other: Result) -> bool:
    return one[0] == other[0] and same_bits(one[1], other[1]) and one[2] == other[2]


def mixed_jobs(vocab: int, count: int) -> list[SampleJob]:
    """Every kind of row with every kind of parameters, as far as `count` reaches."""
    rows = [row_of(kind, vocab) for kind in KINDS]
    chooser = random.Random(vocab)
    return [
        job_of(rows[number % len(rows)], seeded(chooser.choice(PARAMS), number), number)
        for number in range(count)
    ]


@pytest.mark.skipif(len(ISAS) < 2, reason="there is one instruction set here")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", VOCABS)
def test_every_instruction_set_gives_the_same_bits(vocab: int, kind: str) -> None:
    first, *others = samplers(vocab).values()
    row = row_of(kind, vocab)
    for number, params in enumerate(PARAMS):
        job = job_of(row, seeded(params, number), number)
        wanted = result(first, job)
        assert all(same(result(other, job), wanted) for other in others), params


@pytest.mark.parametrize("isa", ISAS)
def test_the_place_in_memory_and_what_lies_around_decide_nothing(isa: str) -> None:
    for vocab in VOCABS:
        sampler = CoreSampler(vocab, isa=isa)
        row = row_of("like a model's", vocab)
        for number, params in enumerate(PARAMS):
            wanted = result(sampler, job_of(row, seeded(params, number)))
            for by in (0, 4, 36):  # bytes from a multiple of 64; larger numbers on both sides
                around = np.full(vocab + 64, 3e38, np.float32)
                around[32 : 32 + vocab] = row
                moved = shifted(around, by)[32 : 32 + vocab]
                assert same(result(sampler, job_of(moved, seeded(params, number))), wanted)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_threads_and_order_of_the_jobs_decide_nothing(threads: int) -> None:
    """Rows that fill the memory of a thread, and more of them than one thread does in 10 ms."""
    vocab = 32003
    sampler = CoreSampler(vocab, isa=ISAS[0], threads=threads)
    rows = [row_of(kind, vocab, seed) for kind in ("flat", "normal") for seed in range(4)]
    params = [params for params in PARAMS if params.top_p < 1 or params.top_k > 1]
    jobs = [
        job_of(row, seeded(chosen, number), number)
        for number, (row, chosen) in enumerate(itertools.product(rows, params * 4))
    ]
    alone = [sampler.sample([job])[0] for job in jobs]
    order = random.Random(threads)
    for _ in range(5):
        places = order.sample(range(len(jobs)), len(jobs))
        found = sampler.sample([jobs[place] for place in places])
        assert found == [alone[place] for place in places]


def test_jobs_are_only_read() -> None:
    vocab = 8193
    (sampler, *_) = samplers(vocab).values()
    for kind in KINDS:
        row = row_of(kind, vocab)
        for params in PARAMS:
            result(sampler, job_of(row, params))
        assert same_bits(row, row_of(kind, vocab))


def test_what_was_sampled_before_leaves_no_trace() -> None:
    jobs = mixed_jobs(8193, 100)
    (used, *_) = samplers(8193).values()
    used.sample(jobs)
    (fresh, *_) = samplers(8193).values()
    assert all(same(result(used, job), result(fresh, job)) for job in jobs[:20])


@pytest.mark.parametrize("threads", [1, 4])
def test_rows_are_examined_alike_alone_and_together(threads: int) -> None:
    vocab = 32003
    sampler = CoreSampler(vocab, isa=ISAS[-1], threads=threads)
    rows = torch.from_numpy(np.stack([row_of(kind, vocab) for kind in KINDS] * 2))
    rows[3, vocab - 1], rows[5, 0] = torch.nan, torch.inf
    ids, finite = sampler.examine(rows)
    alone = [sampler.examine(row[None]) for row in rows]
    assert [(ids[at], finite[at]) for at in range(len(rows))] == [(i[0], f[0]) for i, f in alone]
