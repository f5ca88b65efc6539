"""Where each position of a step attends: built from plain numbers, read by every layer.

Knows rows, pages and the rule that makes attention invariant; nothing of weights. The rule
(strict): **the KV positions that a query reads are a function of its position alone**. They end at
the next multiple of 128 above it and begin with the text or, in a layer with a window, at the last
multiple of 128 below all that a query of the same 128 positions sees. A chunk is cut at the
multiples. Measured on the CPU (torch 2.14): SDPA rows of one query agree to the bit over query
counts, neighbours and batch sizes as long as the KV length is the same and a block of 32 folded
queries never has a remainder of 1 to 3; with KV lengths of other multiples of 128 they do not (36
of 5,632 rows differed in bf16).
Invariant: index arrays only point at real positions, table entries only at allocated pages or at
the zero page, so every value that attention reads is finite.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specd.engine.step_types import PaddedRow
from specd.kv.pages import PAGE_SIZE, ZERO_PAGE

KV_MULTIPLE = 128
QUERY_WIDTHS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
QUERY_BLOCK = 32  # queries that torch's CPU flash kernel multiplies at once, or a multiple
QUERY_REMAINDER = 4  # smallest remainder of a block whose rows agree with a whole block's

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Segment:
    """Positions of one row that see the same KV positions.

    offset: flat index of the first. first: its position in the text. count: how many.
    kv_start: the first KV position that is read, kv_length: how many, whole pages both.
    """

    row: int
    offset: int
    first: int
    count: int
    kv_start: int
    kv_length: int


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Segments of one (query width, KV length) that run as one attention call.

    query_index: [segments * kv_heads * width * group] rows of the flat [position, head] matrix.
    table: [segments * kv_length / PAGE_SIZE] page ids. limit: [segments, width * group], the last
    place among the segment's KV positions that each query sees.
    """

    num_segments: int
    width: int
    kv_length: int
    query_index: Ints
    table: Ints
    limit: Ints


@dataclass(frozen=True, slots=True)
class AttentionLayout:
    """All groups, and where each [position, head] finds its result in their joined outputs."""

    groups: tuple[AttentionGroup, ...]
    output_index: Ints  # [positions * heads]


@dataclass(frozen=True, slots=True)
class HeadCounts:
    """query heads, KV heads, and heads of the fused projection."""

    query: int
    kv: int
    fused: int

    @property
    def group(self) -> int:
        return self.query // self.kv


def query_width(count: int, group: int, *, strict: bool) -> int:
    """Smallest width that holds `count` queries and keeps their bits independent of it."""
    if not strict:
        return count
    for width in QUERY_WIDTHS:
        folded = width * group
        whole = folded >= QUERY_REMAINDER and not 0 < folded % QUERY_BLOCK < QUERY_REMAINDER
        if width >= count and whole:
            return width
    raise AssertionError(f"a segment holds at most {KV_MULTIPLE} positions, not {count}")


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def segments_of(rows: Sequence[PaddedRow], window: int = 0, *, strict: bool) -> list[Segment]:
    """Cut every row at the multiples of 128 (strict), or leave it whole (relaxed).

    window: how many positions a query sees, itself included; 0: all.
    """
    found = []
    for index, row in enumerate(rows):
        first, last = row.first_position, row.first_position + row.count
        while first < last:
            kv_end = _round_up(first + 1, KV_MULTIPLE) if strict else _round_up(last, PAGE_SIZE)
            end = min(last, kv_end)
            offset = row.offset + first - row.first_position
            start = _kv_start(first, window, strict=strict)
            found.append(Segment(index, offset, first, end - first, start, kv_end - start))
            first = end
    return found


def _kv_start(first: int, window: int, *, strict: bool) -> int:
    """What lies before is below the window of the segment's first query, and of the rest."""
    if not window:
        return 0
    multiple = KV_MULTIPLE if strict else PAGE_SIZE
    # Strict: of the first position that could be in the segment, whoever cut it.
    first = first // KV_MULTIPLE * KV_MULTIPLE if strict else first
    return max(0, first - window + 1) // multiple * multiple


def attention_layout(
    rows: Sequence[PaddedRow],
    num_positions: int,
    heads: HeadCounts,
    window: int = 0,
    *,
    strict: bool,
) -> AttentionLayout:
    """Group the segments of a step; positions that are pads get some real position's result."""
    grouped: dict[tuple[int, int], list[Segment]] = defaultdict(list)
    for segment in segments_of(rows, window, strict=strict):
        width = query_width(segment.count, heads.group, strict=strict)
        grouped[width, segment.kv_length].append(segment)
    groups = []
    output_index = np.zeros((num_positions, heads.query), np.int64)
    done = 0
    for (width, kv_length), segments in grouped.items():
        groups.append(_group(segments, rows, width, kv_length, heads))
        done = _place_outputs(output_index, segments, width, heads, done)
    return AttentionLayout(tuple(groups), output_index.reshape(-1))


def _group(
    segments: Sequence[Segment],
    rows: Sequence[PaddedRow],
    width: int,
    kv_length: int,
    heads: HeadCounts,
) -> AttentionGroup:
    steps = np.arange(width)
    counts = np.array([segment.count for segment in segments])
    # Pads of the query width repeat the segment's last query: finite, and dropped afterwards.
    within = np.minimum(steps[None, :], counts[:, None] - 1)
    flat = within + np.array([segment.offset for segment in segments])[:, None]
    firsts = np.array([segment.first - segment.kv_start for segment in segments])
    head = np.arange(heads.query).reshape(heads.kv, 1, heads.group)
    index = flat[:, None, :, None] * heads.fused + head[None]  # [segments, kv, width, group]
    pages = kv_length // PAGE_SIZE
    table = np.full((len(segments), pages), ZERO_PAGE, np.int64)
    for line, segment in zip(table, segments, strict=True):
        start = segment.kv_start // PAGE_SIZE
        own = rows[segment.row].pages[start : start + pages]
        line[: len(own)] = own
    return AttentionGroup(
        num_segments=len(segments),
        width=width,
        kv_length=kv_length,
        query_index=index.reshape(-1),
        table=table.reshape(-1),
        limit=np.repeat(within + firsts[:, None], heads.group, axis=1),
    )


def _place_outputs(
    output_index: Ints, segments: Sequence[Segment], width: int, heads: HeadCounts, done: int
) -> int:
    """Outputs lie as [segment, width, group, kv]; returns how many rows are placed so far."""
    head = np.arange(heads.query)
    within_position = (head % heads.group) * heads.kv + head // heads.group
    for number, segment in enumerate(segments):
        base = done + (number * width + np.arange(segment.count)) * heads.query
        target = slice(segment.offset, segment.offset + segment.count)
        output_index[target] = base[:, None] + within_position[None]
    return done + len(segments) * width * heads.query
