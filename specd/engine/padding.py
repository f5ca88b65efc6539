"""The padding stage: ragged drafts in, one static layout out. The only room that owns lengths.

Drafters return what they like; here a draft is cut to its row's allowance and at its first illegal
id, rows are placed in the layout that the runner asked for, and the bucket is filled up. Pads are
told apart **by position, never by value**: real lengths travel beside the arrays.
Pure. Invariant: rows keep their order, every real token is placed exactly once, and a pad writes
only to the scratch page.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from specd.engine.step_types import CleanDraft, LayoutSpec, PaddedBatch, PaddedRow, PlannedRow
from specd.kv.pages import PAGE_SIZE, SCRATCH_PAGE


def clean_draft(raw: object, allowance: int, vocab_size: int) -> CleanDraft:
    """Cut a raw draft to `allowance` tokens and at its first id outside the vocabulary.

    None and an empty draft are fine. Anything that is no sequence of integers is a fault, as is an
    illegal id; a fault is reported and never raised.
    """
    if raw is None or allowance <= 0:
        return CleanDraft()
    if not isinstance(raw, Iterable) or isinstance(raw, str | bytes):
        return CleanDraft(fault=f"a draft should be a sequence of ids and is {type(raw).__name__}")
    kept: list[int] = []
    try:
        for token in islice(raw, allowance):
            # bool is an int to Python, and never a token id.
            whole = isinstance(token, int | np.integer) and not isinstance(token, bool)
            value = int(token) if whole else -1  # a subclass of int may lie when it is compared
            if not 0 <= value < vocab_size:
                return CleanDraft(tuple(kept), fault=f"draft token {token!r:.60} is no token id")
            kept.append(value)
    except Exception as error:
        return CleanDraft((), fault=f"reading the draft raised {type(error).__name__}")
    return CleanDraft(tuple(kept))


def bucket_for(size: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds `size`.

    Raises:
        ValueError: none does; the scheduler's budget is below the largest bucket.
    """
    index = bisect_left(buckets, size)
    if index == len(buckets):
        raise ValueError(f"{size} positions exceed the largest bucket, {buckets[-1]}")
    return buckets[index]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows that share a geometry: `spans[i]` flat positions for row i, `total` with the tail."""

    name: str
    rows: tuple[int, ...]
    spans: tuple[int, ...]
    total: int


def pad(
    rows: Sequence[PlannedRow],
    drafts: Sequence[CleanDraft],
    pages: Sequence[Sequence[int]],
    layout: LayoutSpec,
    fresh_pages: Iterable[int] = (),
) -> PaddedBatch:
    """Lay out one step.

    Args:
        rows, drafts, pages: one entry per row; `pages` covers each row's positions, draft included.
        fresh_pages: pages handed out for this step.

    Raises:
        ValueError: the step is larger than the largest bucket.
    """
    counts = [
        len(row.tokens) + len(draft.token_ids) for row, draft in zip(rows, drafts, strict=True)
    ]
    parts = _parts(rows, counts, layout)
    offsets: dict[int, tuple[int, int]] = {}
    total = 0
    for part in parts:
        at = total
        for index, span in zip(part.rows, part.spans, strict=True):
            offsets[index] = (at, span)
            at += span
        total += part.total
    padded = _padded_rows(rows, drafts, pages, counts, offsets)
    return _fill(padded, rows, "+".join(part.name for part in parts), total, tuple(fresh_pages))


def _parts(rows: Sequence[PlannedRow], counts: Sequence[int], layout: LayoutSpec) -> list[_Part]:
    """One packed part, or a rectangle of decode rows and a packed part of prompt chunks."""
    everyone = tuple(range(len(rows)))
    if not layout.rectangular:
        return [_packed(everyone, counts, layout)]
    decode = tuple(index for index in everyone if len(rows[index].tokens) == 1)
    chunks = tuple(index for index in everyone if len(rows[index].tokens) > 1)
    parts = []
    if decode:
        parts.append(_rectangle(decode, counts, layout))
    if chunks:
        parts.append(_packed(chunks, counts, layout))
    return parts


def _packed(rows: tuple[int, ...], counts: Sequence[int], layout: LayoutSpec) -> _Part:
    spans = tuple(counts[index] for index in rows)
    total = bucket_for(sum(spans), layout.packed_buckets)
    return _Part(f"packed:{total}", rows, spans, total)


def _rectangle(rows: tuple[int, ...], counts: Sequence[int], layout: LayoutSpec) -> _Part:
    """The smallest captured width that holds the longest draft of this step."""
    width = bucket_for(max(counts[index] for index in rows), layout.widths)
    height = bucket_for(len(rows), layout.row_buckets)
    return _Part(f"{height}x{width}", rows, (width,) * len(rows), height * width)


def _padded_rows(
    rows: Sequence[PlannedRow],
    drafts: Sequence[CleanDraft],
    pages: Sequence[Sequence[int]],
    counts: Sequence[int],
    offsets: dict[int, tuple[int, int]],
) -> tuple[PaddedRow, ...]:
    placed = []
    num_wanted = 0
    for index, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
        offset, span = offsets[index]
        placed.append(
            PaddedRow(
                request_id=row.request_id,
                slot=row.slot,
                offset=offset,
                count=counts[index],
                span=span,
                first_position=row.first_position,
                draft=draft.token_ids,
                samples=row.samples,
                sample_offset=num_wanted + len(row.score_targets),
                pages=tuple(pages[index]),
                choosing=row.choosing,
                score_targets=row.score_targets,
                score_top=row.score_top,
            )
        )
        num_wanted += len(row.score_targets) + placed[-1].num_samples
    return tuple(placed)


def _fill(
    padded: tuple[PaddedRow, ...],
    rows: Sequence[PlannedRow],
    bucket: str,
    total: int,
    fresh_pages: tuple[int, ...],
) -> PaddedBatch:
    tokens = np.zeros(total, np.int64)
    positions = np.zeros(total, np.int64)
    # Pads spread over the scratch page: they may overwrite each other, nobody reads it.
    kv_slots = SCRATCH_PAGE * PAGE_SIZE + np.arange(total, dtype=np.int64) % PAGE_SIZE
    wanted: list[int] = []
    for place, row in zip(padded, rows, strict=True):
        here = slice(place.offset, place.offset + place.count)
        text = np.arange(place.first_position, place.first_position + place.count)
        tokens[here] = row.tokens + place.draft
        positions[here] = text
        kv_slots[here] = np.asarray(place.pages)[text // PAGE_SIZE] * PAGE_SIZE + text % PAGE_SIZE
        wanted.extend(range(place.offset, place.offset + len(place.score_targets)))
        end = place.offset + place.count
        wanted.extend(range(end - place.num_samples, end))
    return PaddedBatch(
        bucket=bucket,
        rows=padded,
        tokens=tokens,
        positions=positions,
        kv_slots=kv_slots,
        sample_index=np.asarray(wanted, np.int64),
        fresh_pages=fresh_pages,
    )
