"""What the core says of rows of logits besides a token, what it refuses, and who uses it."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.core.sampler import CoreSampler
from specd.device.logprobs import token_logprob
from specd.device.sampler import TorchSampler
from specd.engine.params import SamplingParams
from specd.errors import StartFailed
from tests.unit.core.choices import ISAS, KINDS, PARAMS, job_of, row_of, samplers, seeded
from tests.unit.core.toys import VOCAB, build
from tests.unit.device.texts import load_core

pytestmark = pytest.mark.usefixtures("needs_core")


@pytest.mark.parametrize("vocab", [1, 5, 16, 17, 255, 257, 8193])
@pytest.mark.parametrize("isa", ISAS)
def test_a_row_is_finite_unless_its_largest_is_not_or_a_number_is_missing(
    vocab: int, isa: str
) -> None:
    sampler = CoreSampler(vocab, isa=isa)
    for place in {0, vocab // 2, vocab - 1}:
        rows = torch.full((5, vocab), -2.0)
        rows[0, place] = -math.inf
        rows[1, place] = math.inf
        rows[2, place] = math.nan
        rows[3, place] = 1.0
        rows[4] = -math.inf
        ids, finite = sampler.examine(rows)
        assert finite == [vocab > 1, False, False, True, False]
        assert ids[3] == place
        assert finite == torch.isfinite(rows.amax(1)).tolist()


@pytest.mark.parametrize("vocab", [1, 300, 49152])
def test_the_greedy_token_of_many_rows_is_the_reference_s(vocab: int) -> None:
    rows = torch.from_numpy(np.stack([row_of(kind, vocab) for kind in KINDS]))
    for sampler in samplers(vocab).values():
        ids, finite = sampler.examine(rows)
        assert ids == rows.argmax(1).tolist() and all(finite)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", [1, 300, 49152])
def test_log_probabilities_ranks_and_alternatives_are_right(vocab: int, kind: str) -> None:
    """The reference's sum is off by 1e-5 at this size: numbers come from fp64."""
    row = torch.from_numpy(row_of(kind, vocab))
    exact = torch.log_softmax(row.double(), 0)
    (sampler, *_) = samplers(vocab).values()
    for token in {0, vocab // 3, vocab - 1}:
        for top in (0, 1, 20):
            found = sampler.token_logprob(row, token, top)
            wanted = token_logprob(row, token, top)
            assert (found.token_id, found.rank) == (token, wanted.rank)
            ids = [id for id, _ in found.alternatives]
            assert ids == [id for id, _ in wanted.alternatives]
            for id, logprob in [*found.alternatives, (token, found.logprob)]:
                assert logprob is not None
                near = pytest.approx(float(exact[id]), rel=2**-23, abs=2e-7)
                assert logprob == near


few_levels = st.lists(st.sampled_from([-math.inf, -1.0, -0.0, 0.0, 2.0]), min_size=1, max_size=70)


@settings(max_examples=200, deadline=None)
@given(values=few_levels.filter(lambda row: max(row) > -math.inf), top=st.integers(0, 75))
def test_the_lowest_ids_of_equal_alternatives_come_first(values: list[float], top: int) -> None:
    row = torch.tensor(values)
    order = sorted(range(len(values)), key=lambda id: (-values[id], id))
    wanted = [id for id in order if values[id] > -math.inf][:top]
    for sampler in samplers(len(values)).values():
        found = sampler.token_logprob(row, 0, top)
        assert [id for id, _ in found.alternatives] == wanted
        assert found.rank == 1 + sum(value > values[0] for value in values)


def test_an_impossible_token_has_the_log_probability_of_nothing() -> None:
    row = torch.tensor([1.0, -math.inf, 0.0])
    (sampler, *_) = samplers(3).values()
    found = sampler.token_logprob(row, 1, 3)
    assert (found.logprob, found.rank) == (-math.inf, 3)
    assert [id for id, _ in found.alternatives] == [0, 2]


@pytest.mark.parametrize("vocab", [0, (1 << 20) + 1])
def test_a_vocabulary_that_sums_cannot_hold_is_refused(vocab: int) -> None:
    with pytest.raises(StartFailed) as refused:
        CoreSampler(vocab, isa=ISAS[0])
    assert str(refused.value) == f"the core cannot sample from a vocabulary of {vocab} tokens"


def test_the_largest_vocabulary_is_sampled_from() -> None:
    vocab = 1 << 20
    row = np.zeros(vocab, np.float32)  # the largest sum of weights there is
    sampler = CoreSampler(vocab, isa=ISAS[0])
    scores = sampler.scores(job_of(row, SamplingParams(top_p=0.9)))
    assert torch.equal(scores, torch.zeros(vocab))


def test_a_runner_chooses_with_the_core_s_sampler_and_threads(tmp_path: Path) -> None:
    path = build(tmp_path, {"layers": 1})
    runner = load_core(path, "auto", ISAS[0])
    assert isinstance(runner.sampler, CoreSampler)
    row = row_of("normal", VOCAB)
    jobs = [job_of(row, seeded(params, 4), 9) for params in PARAMS]
    assert runner.sampler.sample(jobs) == TorchSampler().sample(jobs)
