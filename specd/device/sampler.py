"""What chooses tokens from logits: the interface of samplers, and the reference for every other.

A runner owns one and hands it to the verifier. Knows nothing of rows, drafts or batches: a job is
one position, whose logits are already behind penalties, bias and bans.
Invariant: a job's token and scores depend, to the bit, on that job alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from specd.device.sampling import sample, scores
from specd.engine.params import SamplingParams


@dataclass(frozen=True, slots=True)
class SampleJob:
    """One token to choose.

    logits: fp32 [vocab], contiguous, at any address; no NaN, and the largest is finite. Behind
    penalties, bias and bans; never changed by a sampler. position: the text position of the token
    to choose, which keys its noise.
    """

    logits: Tensor
    params: SamplingParams
    position: int


class Sampler(Protocol):
    """All methods belong to the device thread."""

    def sample(self, jobs: Sequence[SampleJob]) -> list[int]:
        """One token id per job, in their order; the lowest id wins where scores are equal."""

    def scores(self, job: SampleJob) -> Tensor:
        """What the noise is added to, fp32 [vocab]: (logits - largest) / temperature, and -inf
        where top_k, top_p or min_p remove the token. Greedy: logits - largest, nothing removed."""


class TorchSampler:
    """The reference."""

    def sample(self, jobs: Sequence[SampleJob]) -> list[int]:
        return [int(sample(job.logits, job.params, job.position)) for job in jobs]

    def scores(self, job: SampleJob) -> Tensor:
        return scores(job.logits, job.params)
