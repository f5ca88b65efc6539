"""The probe of samplers finds nothing in the reference, and each dependence that is planted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specd.device import sampler_probe
from specd.device.logprobs import token_logprob
from specd.device.processors import F32, RowProcessors
from specd.device.sampler import SampleJob, Sampler, TorchSampler
from specd.device.sampler_probe import probe_sampler
from specd.engine.step_types import TokenLogprob


def findings(sampler: Sampler, vocab: int = 8192) -> list[str]:
    generator = torch.Generator().manual_seed(0)
    outcomes = list(probe_sampler(sampler, vocab, generator))
    assert len(outcomes) == 16
    return [finding for finding in outcomes if finding is not None]


def moved(values: Tensor) -> bool:
    """Whether an address fits no vector."""
    return values.data_ptr() % 16 != 0


class Crowded(TorchSampler):
    """Another token in company."""

    def sample(self, jobs: Sequence[SampleJob]) -> list[int]:
        return [token + (len(jobs) > 1) for token in super().sample(jobs)]


class Misplaced(TorchSampler):
    """Scores that are off by a bit at an odd address, where top_p is on."""

    def scores(self, job: SampleJob) -> Tensor:
        right = super().scores(job)
        return right * (1 + 2**-23) if job.params.top_p < 1 and moved(job.logits) else right


@pytest.mark.parametrize("vocab", [3, 300, 8193, 49152, 151936])
def test_nothing_is_found_in_the_reference(vocab: int) -> None:
    assert findings(TorchSampler(), vocab) == []


def test_a_token_that_depends_on_its_company_is_found_for_every_way_of_choosing() -> None:
    found = findings(Crowded())
    assert len(found) == 6
    assert found[0] == (
        "sampler: tokens of greedy decoding in one call with 2 others differ from alone"
    )


def test_scores_that_depend_on_an_address_are_found_and_named() -> None:
    assert findings(Misplaced()) == [
        "sampler: scores of top_p at another address differ from alone",
        "sampler: scores of all truncations at another address differ from alone",
    ]


def test_log_probabilities_that_depend_on_an_address_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def faulty(logits: Tensor, token: int, top: int) -> TokenLogprob:
        return token_logprob(logits * (1 + 2**-20) if moved(logits) else logits, token, top)

    monkeypatch.setattr(sampler_probe, "token_logprob", faulty)
    assert findings(TorchSampler()) == [
        "sampler: log probabilities at another address differ from alone"
    ]


def test_penalties_that_depend_on_an_address_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = RowProcessors.apply

    def faulty(self: RowProcessors, logits: F32, index: int) -> F32:
        return right(self, logits, index) + (logits.ctypes.data % 16 != 0)

    monkeypatch.setattr(RowProcessors, "apply", faulty)
    assert findings(TorchSampler()) == [
        "sampler: penalties and bias at another address differ from alone"
    ]
