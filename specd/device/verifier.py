"""Which draft tokens the target would have produced itself. One rule, greedy and sampled alike.

Every position of a row samples its own token; a draft token is accepted while it equals the token
sampled at its position and its index is below the draft length; the next sampled token is the
target's own. There are no draft probabilities and no residual distribution
(drafter-invariant speculative decoding: Daliri, Musco, Suresh, arXiv 2408.07978).
Invariant: the result does not depend on who drafted, and pads cannot be accepted, since the rule
reads lengths and never looks at values behind them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specd.device.sampling import is_greedy, sample
from specd.engine.step_types import PaddedBatch, PaddedRow, RowFault, RowResult


def accepted_length(draft: Sequence[int], sampled: Sequence[int]) -> int:
    """Length of the longest prefix of `draft` that equals `sampled`, position by position."""
    for index, token in enumerate(draft):
        if token != sampled[index]:
            return index
    return len(draft)


def verify(logits: Tensor, batch: PaddedBatch) -> tuple[RowResult | None, ...]:
    """logits fp32 [len(batch.sample_index), vocab], row by row -> one result per row."""
    if not batch.sample_index.size:
        return tuple(None for _ in batch.rows)
    finite = torch.isfinite(logits.amax(1)).tolist()
    chosen: list[int] = logits.argmax(1).tolist()
    return tuple(_verify_row(row, logits, chosen, finite) for row in batch.rows)


def _verify_row(
    row: PaddedRow, logits: Tensor, greedy: Sequence[int], finite: Sequence[bool]
) -> RowResult | None:
    if not row.samples:
        return None
    start, end = row.sample_offset, row.sample_offset + row.num_samples
    sampled = greedy[start:end] if is_greedy(row.choosing.sampling) else _sample_row(row, logits)
    accepted = accepted_length(row.draft, sampled)
    # Rows behind a rejected draft token are the drafter's doing: they decide nothing.
    if not all(finite[start : start + accepted + 1]):
        return RowResult(accepted=0, token_ids=(), fault=RowFault.NOT_FINITE)
    return RowResult(accepted, tuple(sampled[: accepted + 1]))


def _sample_row(row: PaddedRow, logits: Tensor) -> list[int]:
    """Sample position by position and stop behind the first rejected draft token."""
    first = row.first_position + row.count - row.draft_len  # text position of the first new token
    sampled: list[int] = []
    for index in range(row.num_samples):
        token = int(sample(logits[row.sample_offset + index], row.choosing.sampling, first + index))
        sampled.append(token)
        if index < row.draft_len and token != row.draft[index]:
            break
    return sampled
