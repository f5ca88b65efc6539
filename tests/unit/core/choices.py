"""Rows of logits that a sampler has to get right, what it is asked, and what the answers may be.

Knows the definition of sampling, in numpy: fp32 where the definition says fp32, else fp64.
Invariant: expectations never come from the core.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from specd.core import library
from specd.core.sampler import CoreSampler
from specd.device.noise import hash_words, key_tensor
from specd.device.sampler import SampleJob
from specd.device.sampling import is_greedy
from specd.engine.params import SamplingParams
from specd.engine.seeds import key_words

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint32]

ISAS = library.supported()

# Beside a share of probability, what fp32 weights (8e-8 each) may move.
SHARE = 2e-7
# Two weights so close may be one in fp32.
TIE = 4e-7


def _normal(random: np.random.Generator, vocab: int, spread: float = 3.0) -> F64:
    return random.normal(0, spread, vocab)


def _mostly_banned(random: np.random.Generator, vocab: int) -> F64:
    row = _normal(random, vocab)
    row[random.random(vocab) < 0.99] = -math.inf
    row[random.integers(vocab)] = 1.0
    return row


def _bf16(random: np.random.Generator, vocab: int) -> F64:
    row = torch.from_numpy(_normal(random, vocab)).bfloat16().double()
    return row.numpy()


KINDS: dict[str, Callable[[np.random.Generator, int], F64]] = {
    "normal": _normal,
    "peaked": lambda random, vocab: np.where(
        np.arange(vocab) == vocab // 3, 60.0, _normal(random, vocab)
    ),
    "flat": lambda random, vocab: _normal(random, vocab, 0.01),
    "all equal": lambda random, vocab: np.full(vocab, -7.25),
    "few levels": lambda random, vocab: _normal(random, vocab).round(),
    "bf16": _bf16,
    "huge": lambda random, vocab: _normal(random, vocab) * 1e37,
    "tiny": lambda random, vocab: _normal(random, vocab) * 1e-42,
    "mostly banned": _mostly_banned,
    "rising": lambda random, vocab: np.sort(_normal(random, vocab)),
    "falling": lambda random, vocab: -np.sort(_normal(random, vocab)),
    "like a model's": lambda random, vocab: np.where(
        random.random(vocab) < 3e-4, random.uniform(5, 15, vocab), _normal(random, vocab, 2.6) - 2
    ),
}


def row_of(kind: str, vocab: int, seed: int = 0) -> F32:
    random = np.random.default_rng([seed, vocab, list(KINDS).index(kind)])
    with np.errstate(over="ignore"):
        return KINDS[kind](random, vocab).astype(np.float32)


PARAMS = [
    SamplingParams(temperature=0),
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=5.0),
    SamplingParams(top_k=1),
    SamplingParams(top_k=50),
    SamplingParams(temperature=1.7, top_k=4000),
    SamplingParams(top_p=0.3),
    SamplingParams(temperature=0.8, top_p=0.95),
    SamplingParams(temperature=1.5, top_p=0.9999),
    SamplingParams(min_p=0.05),
    SamplingParams(top_k=50, top_p=0.9),
    SamplingParams(top_k=20, min_p=0.1),
    SamplingParams(temperature=1.3, top_p=0.8, min_p=0.02),
    SamplingParams(temperature=0.9, top_k=40, top_p=0.9, min_p=0.01),
]


def job_of(row: F32, params: SamplingParams, position: int = 1) -> SampleJob:
    return SampleJob(torch.from_numpy(row), params, position)


def samplers(vocab: int) -> dict[str, CoreSampler]:
    """One per instruction set of this machine, the fastest first."""
    return {isa: CoreSampler(vocab, isa=isa) for isa in ISAS}


def seeded(params: SamplingParams, seed: int) -> SamplingParams:
    return replace(params, seed=seed)


def noise_from(words: Words) -> F32:
    """The nearest fp32 to the published noise."""
    u = ((words.astype(np.float64) + 0.5) / 2**32).astype(np.float32)
    return (-np.log(-np.log1p(-np.minimum(u.astype(np.float64), 1 - 2.0**-24)))).astype(np.float32)


def noise_of(params: SamplingParams, position: int, vocab: int) -> F32:
    key = key_tensor([key_words(params.seed, position)])
    return noise_from(hash_words(key, vocab)[0].numpy().view(np.uint32))


@dataclass(frozen=True, slots=True)
class Expected:
    """scores: fp32, as if nothing were removed. kept, removed: bool; neither is at a boundary."""

    scores: F32
    kept: Bools
    removed: Bools


def expected(row: F32, params: SamplingParams) -> Expected:
    """What the definition says of a row."""
    with np.errstate(over="ignore"):
        shifted = row - row.max()
        if is_greedy(params):
            return Expected(shifted, shifted > -math.inf, shifted == -math.inf)
        scores = shifted / np.float32(min(params.temperature, float(np.finfo(np.float32).max)))
    kept = scores > -math.inf
    if 0 < params.top_k < len(row):
        kept &= scores >= np.partition(scores, len(row) - params.top_k)[len(row) - params.top_k]
    removed = ~kept
    if params.top_p < 1:
        most, least = _masses_above(scores, kept)
        kept, removed = kept & (most < params.top_p - SHARE), removed | (least >= params.top_p)
        kept |= scores == 0
    if params.min_p > 0:
        low = scores < np.float32(math.log(params.min_p))
        kept, removed = kept & ~low, removed | low
    return Expected(scores, kept, removed)


def _masses_above(scores: F32, alive: Bools) -> tuple[F64, F64]:
    """The share of what is surely, and of what may be, more probable than each token.

    The second is less by `SHARE` than what tokens have that no rounding makes equal.
    """
    weights = np.where(alive, np.exp(scores.astype(np.float64)), 0)
    ascending = np.sort(weights)
    mass = np.append(0, ascending.cumsum())
    total = mass[-1]
    by_score = np.sort(np.where(alive, scores, np.float32(-math.inf)))
    most = 1 - mass[np.searchsorted(by_score, scores, side="right")] / total
    least = 1 - mass[np.searchsorted(ascending, weights * (1 + TIE), side="right")] / total
    return most, least - SHARE


def check(sampler: CoreSampler, job: SampleJob) -> None:
    """A job's scores and token are what the definition says."""
    row = job.logits.numpy()
    wanted = expected(row, job.params)
    scores = sampler.scores(job).numpy()
    kept = scores > -math.inf
    assert not (wanted.kept & ~kept).any(), np.flatnonzero(wanted.kept & ~kept)[:5]
    assert not (wanted.removed & kept).any(), np.flatnonzero(wanted.removed & kept)[:5]
    assert np.array_equal(scores[kept], wanted.scores[kept])
    values = scores
    if not is_greedy(job.params):
        values = scores + noise_of(job.params, job.position, len(row))
    assert sampler.sample([job]) == [int(values.argmax())]
