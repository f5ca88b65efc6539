"""Does the choice of a token depend on what is chosen beside it? Asked at start-up.

Each operation behind the model runs on rows of the vocabulary's size: alone, in one call with other
rows of a matrix, and at an address that no vector fits. Results are compared to the bit.
Knows samplers, processors and log probabilities; nothing of models.
Invariant: a finding is a fact of this machine and this build, never a tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from specd.device.logprobs import token_logprob
from specd.device.processors import RowProcessors
from specd.device.sampler import SampleJob, Sampler
from specd.engine.params import SamplingParams
from specd.engine.step_types import Choosing, PaddedRow, SeenTokens, TokenLogprob

Result = int | Tensor | TokenLogprob
Operation = Callable[[Tensor], Sequence[Result]]  # logits [rows, vocab] -> one result per row

_ROWS = 3
_POSITION = 7
_SAMPLED = SamplingParams(temperature=0.8, seed=1)
_CHOICES = {
    "greedy decoding": SamplingParams(temperature=0),
    "sampling": _SAMPLED,
    "top_k": replace(_SAMPLED, top_k=50),
    "top_p": replace(_SAMPLED, top_p=0.9),
    "min_p": replace(_SAMPLED, min_p=0.01),
    "all truncations": replace(_SAMPLED, top_k=50, top_p=0.9, min_p=0.01),
}


def same_bits(one: Tensor, other: Tensor) -> bool:
    """To the bit. A file may hold weights that are no numbers, which is no fault of the machine."""
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(
        one.nan_to_num(nan=0.0), other.nan_to_num(nan=0.0)
    )


def probe_sampler(
    sampler: Sampler, vocab_size: int, generator: torch.Generator
) -> Iterator[str | None]:
    """One outcome per operation, a finding or None; belongs to the device thread."""
    rows = torch.randn(_ROWS, vocab_size, generator=generator) * 5
    for name, operation in _operations(sampler, vocab_size):
        yield _compare(name, operation, rows)


def _operations(sampler: Sampler, vocab_size: int) -> Iterator[tuple[str, Operation]]:
    for name, params in _CHOICES.items():
        yield f"tokens of {name}", partial(_tokens, sampler, params)
        yield f"scores of {name}", partial(_scores, sampler, params)
    yield "argmax", lambda rows: rows.argmax(1).tolist()
    yield "maximum", lambda rows: list(rows.amax(1))
    yield "log probabilities", lambda rows: [token_logprob(row, 0, 20) for row in rows]
    processors = RowProcessors(_processed_row(vocab_size), vocab_size)
    yield (
        "penalties and bias",
        lambda rows: [torch.from_numpy(processors.apply(row.numpy(), 1)) for row in rows],
    )


def _tokens(sampler: Sampler, params: SamplingParams, rows: Tensor) -> list[int]:
    return sampler.sample([SampleJob(row, params, _POSITION) for row in rows])


def _scores(sampler: Sampler, params: SamplingParams, rows: Tensor) -> list[Tensor]:
    return [sampler.scores(SampleJob(row, params, _POSITION)) for row in rows]


def _processed_row(vocab_size: int) -> PaddedRow:
    """Half of the vocabulary seen, its last token biased and its first drafted."""
    ids = np.arange(0, vocab_size, 2)
    counts = (ids % 5).astype(np.int32)
    seen = SeenTokens(ids, counts == 0, counts, {int(token): at for at, token in enumerate(ids)})
    sampling = SamplingParams(
        repetition_penalty=1.1,
        presence_penalty=0.3,
        frequency_penalty=0.7,
        logit_bias=((vocab_size - 1, 1.5),),
    )
    return PaddedRow("probe", 0, 0, 2, 2, 0, (0,), True, 0, (), Choosing(sampling, seen))


def _compare(name: str, operation: Operation, rows: Tensor) -> str | None:
    """A sentence about the first company in which a row's result differs from alone."""
    alone = [operation(row[None].clone())[0] for row in rows]
    moved = torch.empty(rows.numel() + 1)[1:].view(rows.shape).copy_(rows)
    found = {
        f"in one call with {len(rows) - 1} others": operation(rows),
        "at another address": [operation(row[None])[0] for row in moved],
    }
    for company, results in found.items():
        if not all(map(_equal, results, alone)):
            return f"sampler: {name} {company} differ from alone"
    return None


def _equal(one: Result, other: Result) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return same_bits(one, other)
    return one == other
