"""Which draft tokens the target would have produced itself. One rule, greedy and sampled alike.

Every position of a row chooses its own token, as if the draft before it were text; a draft token is
accepted while it equals the token chosen at its position and its index is below the draft length;
the next chosen token is the target's own. There are no draft probabilities and no residual
distribution (drafter-invariant speculative decoding: Daliri, Musco, Suresh, arXiv 2408.07978).
Invariant: the result does not depend on who drafted, and pads cannot be accepted, since the rule
reads lengths and never looks at values behind them. A position that cannot choose ends what the
step accepts; it is the row's fault only where the row begins with it, as it would without a draft.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from specd.device.logprobs import token_logprob
from specd.device.processors import RowProcessors, changes_logits
from specd.device.sampler import SampleJob, Sampler
from specd.device.sampling import is_greedy
from specd.engine.step_types import PaddedBatch, PaddedRow, RowFault, RowResult, TokenLogprob

_log = logging.getLogger("specd.device")


@dataclass(frozen=True, slots=True)
class _Asked:
    """A row's sampled positions that can choose, first to last, and what is wrong with the next.

    fault: None if the row has no further position. plain: greedy, from the model's own logits.
    """

    row: PaddedRow
    jobs: tuple[SampleJob, ...]
    fault: RowFault | None
    plain: bool


def accepted_length(draft: Sequence[int], sampled: Sequence[int]) -> int:
    """Length of the longest prefix of `draft` that equals `sampled`, position by position."""
    for index, (token, own) in enumerate(zip(draft, sampled, strict=False)):
        if token != own:
            return index
    return min(len(draft), len(sampled))


def verify(logits: Tensor, batch: PaddedBatch, sampler: Sampler) -> tuple[RowResult | None, ...]:
    """One result per row, None for rows that neither sample nor score.

    logits: fp32 [len(batch.sample_index), vocab] on the CPU, contiguous, row by row; only read.
    Waits for the masks of rows that have a structure.
    """
    if not batch.sample_index.size:
        return tuple(None for _ in batch.rows)
    finite: list[bool] = torch.isfinite(logits.amax(1)).tolist()
    asked = [_ask(row, logits, finite) for row in batch.rows]
    chosen = _choose(asked, logits, sampler)
    return tuple(
        _result(each, tokens, logits, finite, sampler)
        for each, tokens in zip(asked, chosen, strict=True)
    )


def _ask(row: PaddedRow, logits: Tensor, finite: Sequence[bool]) -> _Asked:
    """Put the processors before the row's positions, up to the first that cannot choose."""
    processors = None
    if row.samples and changes_logits(row.choosing):
        try:
            processors = RowProcessors(row, logits.shape[1])
        except Exception:
            _log.exception("%s has no masks", row.request_id)
            return _Asked(row, (), RowFault.NO_MASK, False)
    plain = processors is None and is_greedy(row.choosing.sampling)
    first = row.first_position + row.count - row.draft_len  # text position of the first new token
    jobs: list[SampleJob] = []
    for index in range(row.num_samples):
        place = row.sample_offset + index
        if not finite[place]:
            return _Asked(row, tuple(jobs), RowFault.NOT_FINITE, plain)
        values = logits[place]
        if processors is not None:
            changed = processors.apply(values.numpy(), index)
            largest = changed.max()
            if not np.isfinite(largest):
                # A finite row that has no token left: of bans only masks can reach that far.
                masked = row.choosing.masks is not None and largest == -np.inf
                fault = RowFault.NO_MASK if masked else RowFault.NOT_FINITE
                return _Asked(row, tuple(jobs), fault, plain)
            values = torch.from_numpy(changed)
        jobs.append(SampleJob(values, row.choosing.sampling, first + index))
    return _Asked(row, tuple(jobs), None, plain)


def _choose(asked: Sequence[_Asked], logits: Tensor, sampler: Sampler) -> list[list[int]]:
    """The tokens of each row's jobs; the sampler is called once for all that need it."""
    greedy: list[int] = logits.argmax(1).tolist() if any(each.plain for each in asked) else []
    jobs = [job for each in asked if not each.plain for job in each.jobs]
    sampled = iter(sampler.sample(jobs) if jobs else ())
    chosen = []
    for each in asked:
        start, count = each.row.sample_offset, len(each.jobs)
        chosen.append(greedy[start : start + count] if each.plain else list(islice(sampled, count)))
    return chosen


def _result(
    asked: _Asked, chosen: Sequence[int], logits: Tensor, finite: Sequence[bool], sampler: Sampler
) -> RowResult | None:
    row = asked.row
    if not row.samples and not row.score_targets:
        return None
    scored = slice(row.sample_offset - len(row.score_targets), row.sample_offset)
    fault = asked.fault if not chosen else None
    if not all(finite[scored]):
        fault = RowFault.NOT_FINITE
    if fault is not None:
        return RowResult(accepted=0, token_ids=(), fault=fault)
    prompt = tuple(
        token_logprob(values, token, row.score_top)
        for values, token in zip(logits[scored], row.score_targets, strict=True)
    )
    if not row.samples:
        return RowResult(accepted=0, token_ids=(), prompt_logprobs=prompt)
    # Where a position behind the accepted tokens cannot choose, the last of them is the own one.
    accepted = min(accepted_length(row.draft, chosen), len(chosen) - 1)
    tokens = tuple(chosen[: accepted + 1])
    return RowResult(accepted, tokens, _logprobs(asked, tokens, logits, sampler), prompt)


def _logprobs(
    asked: _Asked, tokens: Sequence[int], logits: Tensor, sampler: Sampler
) -> tuple[TokenLogprob, ...]:
    """One per token where the row asks for them."""
    choosing, start = asked.row.choosing, asked.row.sample_offset
    if choosing.top_logprobs is None:
        return ()
    found = []
    for index, (token, job) in enumerate(zip(tokens, asked.jobs, strict=False)):
        values = sampler.scores(job) if choosing.processed_logprobs else logits[start + index]
        found.append(token_logprob(values, token, choosing.top_logprobs))
    return tuple(found)
