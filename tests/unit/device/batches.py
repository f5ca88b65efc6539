"""Padded batches by hand, for tests of the rooms behind the padding stage."""

from __future__ import annotations

from collections.abc import Sequence

from specd.engine.padding import pad
from specd.engine.params import SamplingParams
from specd.engine.step_types import Choosing, CleanDraft, LayoutSpec, PaddedBatch, PlannedRow
from specd.kv.pages import RESERVED_PAGES, pages_for

GREEDY = SamplingParams(temperature=0)
PACKED = LayoutSpec((1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))


def planned(
    tokens: Sequence[int],
    first_position: int,
    *,
    samples: bool = True,
    sampling: SamplingParams = GREEDY,
    name: str = "row",
) -> PlannedRow:
    return PlannedRow(name, 0, tuple(tokens), first_position, samples, Choosing(sampling))


def batch_of(
    rows: Sequence[PlannedRow], drafts: Sequence[Sequence[int]], layout: LayoutSpec = PACKED
) -> PaddedBatch:
    """Rows with pages of their own, one behind the other."""
    pages, free = [], RESERVED_PAGES
    for row, draft in zip(rows, drafts, strict=True):
        count = pages_for(row.first_position + len(row.tokens) + len(draft))
        pages.append(range(free, free + count))
        free += count
    return pad(rows, [CleanDraft(tuple(draft)) for draft in drafts], pages, layout)


def one_row_batch(
    *, last_position: int, draft: Sequence[int], sampling: SamplingParams = GREEDY
) -> PaddedBatch:
    """A row that decodes the token at `last_position` with a draft behind it."""
    return batch_of([planned([0], last_position, sampling=sampling)], [draft])
