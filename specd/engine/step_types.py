"""The values that pass between the six rooms of a step. All frozen; nobody adds fields elsewhere.

A *row* is a request's share of one step. Flat positions number the token slots of a step, pads
included; text positions number the tokens of a request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specd.engine.params import SamplingParams

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """What the scheduler gives a request in this step.

    tokens: the known but uncomputed token ids that run now. first_position: text position of the
    first. samples: whether these reach the last known token, so that the row yields a new one.
    """

    request_id: str
    slot: int
    tokens: tuple[int, ...]
    first_position: int
    samples: bool
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class CleanDraft:
    """A draft after the padding stage: legal ids, at most the allowance.

    fault: what was wrong with the raw draft (illegal ids, not a sequence), None if nothing.
    """

    token_ids: tuple[int, ...] = ()
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class LayoutSpec:
    """Which static shapes the runner has.

    packed_buckets: totals of flat positions, ascending; the last bounds a step.
    widths: positions per row of the rectangle, ascending; empty where the runner runs packed.
    row_buckets: rows of the rectangle, ascending.
    """

    packed_buckets: tuple[int, ...]
    widths: tuple[int, ...] = ()
    row_buckets: tuple[int, ...] = ()

    @property
    def rectangular(self) -> bool:
        return bool(self.widths)

    @property
    def max_draft(self) -> int:
        """Draft tokens that fit a row beside the one token that it is behind."""
        return (self.widths or self.packed_buckets)[-1] - 1


@dataclass(frozen=True, slots=True)
class PaddedRow:
    """A row inside a padded batch.

    offset: flat index of its first position. count: real positions, draft included; behind them,
    up to `span`, are pads. draft: the draft's ids. pages: KV pages that cover its positions.
    sample_offset: index of its first sampled position in `PaddedBatch.sample_index`; a row that
    samples has draft_len + 1 of them, another none.
    """

    request_id: str
    slot: int
    offset: int
    count: int
    span: int
    first_position: int
    draft: tuple[int, ...]
    samples: bool
    sample_offset: int
    pages: tuple[int, ...]
    sampling: SamplingParams

    @property
    def draft_len(self) -> int:
        return len(self.draft)

    @property
    def num_samples(self) -> int:
        return self.draft_len + 1 if self.samples else 0


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """A step of static shape with the real lengths beside it.

    bucket: the graph key as text, `packed:16` or `4x8` (rows x width) or `4x8+packed:64`.
    tokens, positions, kv_slots: [bucket total]; pads hold token 0, position 0 and a slot of the
    scratch page, and nothing ever asks whether a value is a pad: lengths say so.
    sample_index: flat positions whose logits are wanted, row by row.
    fresh_pages: pages handed out for this step, to be zeroed before anything is written.
    """

    bucket: str
    rows: tuple[PaddedRow, ...]
    tokens: Ints
    positions: Ints
    kv_slots: Ints
    sample_index: Ints
    fresh_pages: tuple[int, ...] = ()

    @property
    def num_positions(self) -> int:
        return len(self.tokens)

    @property
    def num_real(self) -> int:
        return sum(row.count for row in self.rows)

    @property
    def num_pads(self) -> int:
        return self.num_positions - self.num_real


@dataclass(frozen=True, slots=True)
class RowResult:
    """What verification found for a row that samples.

    accepted: draft tokens that the target would have produced itself, from the first on.
    token_ids: those, and the target's own token behind them: accepted + 1 ids.
    finite: False if a position that counts had a NaN or no finite largest logit; then the ids mean
    nothing.
    """

    accepted: int
    token_ids: tuple[int, ...]
    finite: bool


@dataclass(frozen=True, slots=True)
class StepResult:
    """One `RowResult` per row of the batch, None for rows that do not sample."""

    rows: tuple[RowResult | None, ...]
    device_time_s: float
