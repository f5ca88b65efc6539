"""Verifiers with one fault each, of the kinds that engines have shipped, for tests to find.

`Verifier` is the rule once more, written for faults: each decision is a method of its own. Without
a fault it must give what the right one gives, which a test checks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specd.device.processors import RowProcessors
from specd.device.sampler import SampleJob, Sampler
from specd.engine.params import SamplingParams
from specd.engine.step_types import Choosing, PaddedBatch, PaddedRow, RowResult


class RightVerifier:
    """A row at a time, a position at a time."""

    def __call__(
        self, logits: Tensor, batch: PaddedBatch, sampler: Sampler
    ) -> tuple[RowResult | None, ...]:
        return tuple(self.row(row, logits, sampler) for row in batch.rows)

    def row(self, row: PaddedRow, logits: Tensor, sampler: Sampler) -> RowResult:
        draft, tokens = self.draft(row), list[int]()
        for index, guess in enumerate(draft):
            token = self.token(row, logits, index, sampler)
            if not self.accepts(index, guess, token):
                tokens.append(self.own(row, logits, index, sampler))
                return RowResult(index, tuple(tokens))
            tokens.append(guess)
        tokens.append(self.token(row, logits, len(draft), sampler))
        return RowResult(len(draft), tuple(tokens))

    def token(self, row: PaddedRow, logits: Tensor, index: int, sampler: Sampler) -> int:
        choosing = self.choosing(row, index)
        values = logits[row.sample_offset + self.logits_index(row, index)]
        seen_by = replace(row, choosing=choosing, draft=self.prefix(row, index))
        own_index = self.processors_index(index)
        changed = self.processed(RowProcessors(seen_by, len(values)), values, own_index, choosing)
        position = row.first_position + row.count - row.draft_len + self.position_index(index)
        return sampler.sample([SampleJob(changed, choosing.sampling, position)])[0]

    def processed(
        self, processors: RowProcessors, values: Tensor, index: int, choosing: Choosing
    ) -> Tensor:
        return torch.from_numpy(processors.apply(values.numpy(), index))

    def draft(self, row: PaddedRow) -> tuple[int, ...]:
        return row.draft

    def accepts(self, index: int, guess: int, token: int) -> bool:
        return guess == token

    def own(self, row: PaddedRow, logits: Tensor, index: int, sampler: Sampler) -> int:
        """The token that is given where a guess is rejected."""
        return self.token(row, logits, index, sampler)

    def choosing(self, row: PaddedRow, index: int) -> Choosing:
        return row.choosing

    def logits_index(self, row: PaddedRow, index: int) -> int:
        return index

    def position_index(self, index: int) -> int:
        return index

    def processors_index(self, index: int) -> int:
        return index

    def prefix(self, row: PaddedRow, index: int) -> tuple[int, ...]:
        """The draft as the penalties know it; those at `index` see what is before it."""
        return row.draft


class OffByOne(RightVerifier):
    """The logits of a draft token are checked against the next one."""

    def logits_index(self, row: PaddedRow, index: int) -> int:
        return min(index + 1, row.draft_len)


class PadsAccepted(RightVerifier):
    """The draft is as long as the row's span; what a pad's logits hold belongs to no text."""

    def draft(self, row: PaddedRow) -> tuple[int, ...]:
        return row.draft + (0,) * (row.span - row.count)

    def logits_index(self, row: PaddedRow, index: int) -> int:
        return min(index, row.draft_len)


class FirstUnverified(RightVerifier):
    """The first draft token is committed without verification."""

    def accepts(self, index: int, guess: int, token: int) -> bool:
        return index == 0 or guess == token


class ResidualFromTheWrongRow(RightVerifier):
    """The token behind a rejection comes from the logits behind the rejected one."""

    def own(self, row: PaddedRow, logits: Tensor, index: int, sampler: Sampler) -> int:
        return self.token(replace(row, sample_offset=row.sample_offset + 1), logits, index, sampler)


class NoiseOfTheStep(RightVerifier):
    """All positions of a step are drawn with the noise of its first."""

    def position_index(self, index: int) -> int:
        return 0


class PenaltiesOncePerStep(RightVerifier):
    """All positions of a step are penalised for what was known before it."""

    def prefix(self, row: PaddedRow, index: int) -> tuple[int, ...]:
        return ()


class RejectedDraftsLeaveATrace(RightVerifier):
    """The whole draft counts as seen, at every position and whatever becomes of it."""

    def processors_index(self, index: int) -> int:
        return 99


class MaskOfTheFirstPosition(RightVerifier):
    """The structure is asked once for each step."""

    def processors_index(self, index: int) -> int:
        return 0


class BansOfTheStep(RightVerifier):
    """A ban that holds at the first position of a step holds at all of them."""

    def choosing(self, row: PaddedRow, index: int) -> Choosing:
        held = 99 if row.choosing.num_banned else 0
        return replace(row.choosing, num_banned=held)


class BonusTokenOnly(RightVerifier):
    """Some parameters are read only where the token behind the draft is drawn."""

    def __init__(self, **defaults: Any) -> None:
        self.defaults = defaults

    def choosing(self, row: PaddedRow, index: int) -> Choosing:
        if index == row.draft_len:
            return row.choosing
        sampling = replace(row.choosing.sampling, **self.defaults)
        return replace(row.choosing, sampling=sampling)


class GreedyAcceptance(RightVerifier):
    """Draft positions are greedy, whatever the temperature."""

    def choosing(self, row: PaddedRow, index: int) -> Choosing:
        if index == row.draft_len:
            return row.choosing
        return replace(row.choosing, sampling=replace(row.choosing.sampling, temperature=0.0))


class BiasBeforePenalties(RightVerifier):
    """The order of two processors is swapped."""

    def processed(
        self, processors: RowProcessors, values: Tensor, index: int, choosing: Choosing
    ) -> Tensor:
        bias: Iterable[tuple[int, float]] = choosing.sampling.logit_bias
        moved = values.clone()
        for token, value in bias:
            moved[token] += value
        changed = super().processed(processors, moved, index, choosing)
        for token, value in bias:
            changed[token] -= value
        return changed


NO_BIAS = BonusTokenOnly(logit_bias=())
NO_TRUNCATION = BonusTokenOnly(top_k=0, top_p=1.0, min_p=0.0)
NO_TEMPERATURE = BonusTokenOnly(temperature=SamplingParams().temperature)
