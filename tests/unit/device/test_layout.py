"""The attention layout: who attends to what, read back from the index arrays alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.device.layout import (
    KV_MULTIPLE,
    QUERY_WIDTHS,
    AttentionLayout,
    HeadCounts,
    attention_layout,
    query_width,
    segments_of,
)
from specd.engine.padding import pad
from specd.engine.step_types import CleanDraft, LayoutSpec, PaddedBatch, PaddedRow
from specd.kv.pages import PAGE_SIZE, RESERVED_PAGES, SCRATCH_PAGE, ZERO_PAGE, pages_for
from tests.unit.device.batches import PACKED, batch_of, planned

RECTANGLE = LayoutSpec(PACKED.packed_buckets, widths=(1, 2, 4, 8), row_buckets=(1, 2, 4, 8))


def heads(query: int, kv: int) -> HeadCounts:
    return HeadCounts(query, kv, query + 2 * kv)


def reads(
    layout: AttentionLayout, flat: int, head: int, counts: HeadCounts
) -> tuple[int, int, int, int, list[int]]:
    """What the result of (flat position, head) was computed from.

    Returns: flat position and head of the query, KV head, last visible position, page table.
    """
    row = int(layout.output_index.reshape(-1, counts.query)[flat, head])
    for group in layout.groups:
        queries = group.width * counts.group
        size = group.num_segments * queries * counts.kv
        if row >= size:
            row -= size
            continue
        # Outputs lie as [segment, query, kv head]; queries as [segment, kv head, query].
        segment, query, kv = np.unravel_index(row, (group.num_segments, queries, counts.kv))
        source = group.query_index.reshape(group.num_segments, counts.kv, queries)
        position, source_head = divmod(int(source[segment, kv, query]), counts.fused)
        table = group.table.reshape(group.num_segments, -1)[segment].tolist()
        assert len(table) * PAGE_SIZE == group.kv_length
        return position, source_head, int(kv), int(group.limit[segment, query]), table
    raise AssertionError("an output index points behind the last group")


@st.composite
def batches(draw: st.DrawFn) -> PaddedBatch:
    rows, drafts, pages = [], [], []
    free = list(range(RESERVED_PAGES, 200))
    draw(st.randoms(use_true_random=False)).shuffle(free)
    for number in range(draw(st.integers(1, 5))):
        first = draw(st.one_of(st.integers(0, 600), st.sampled_from([127, 128, 255, 256, 383])))
        count = draw(st.one_of(st.just(1), st.integers(1, 40), st.just(130)))
        draft = [0] * draw(st.integers(0, 7)) if count == 1 else []
        rows.append(planned([1] * count, first, name=str(number)))
        drafts.append(CleanDraft(tuple(draft)))
        own = pages_for(first + count + len(draft))
        pages.append([free.pop() for _ in range(own)])
    return pad(rows, drafts, pages, draw(st.sampled_from([PACKED, RECTANGLE])))


WINDOWS = st.one_of(st.sampled_from([0, 1, 127, 128, 129, 1000]), st.integers(1, 300))


@settings(max_examples=60, deadline=None)
@given(
    batch=batches(),
    counts=st.sampled_from([heads(1, 1), heads(4, 2), heads(9, 3), heads(7, 1), heads(6, 6)]),
    window=WINDOWS,
    strict=st.booleans(),
)
def test_every_position_attends_to_exactly_its_own_past(
    batch: PaddedBatch, counts: HeadCounts, window: int, strict: bool
) -> None:
    layout = attention_layout(batch.rows, batch.num_positions, counts, window, strict=strict)
    for row in batch.rows:
        for step in range(row.count):
            position = row.first_position + step
            for head in range(counts.query):
                flat, source, kv, limit, table = reads(layout, row.offset + step, head, counts)
                assert (flat, source, kv) == (row.offset + step, head, head // counts.group)
                # The table begins with a whole page, at or below the window's first position.
                start = position - limit
                assert start % PAGE_SIZE == 0
                assert 0 <= start <= max(0, position - window + 1) if window else start == 0
                # The visible pages are the row's own; the rest its own or the zero page.
                own = row.pages[start // PAGE_SIZE :]
                needed = limit // PAGE_SIZE + 1
                assert table[:needed] == list(own[:needed])
                behind = [*own[needed:], *[ZERO_PAGE] * len(table)]
                assert table[needed:] == behind[: len(table) - needed]


@settings(max_examples=60, deadline=None)
@given(batch=batches(), counts=st.sampled_from([heads(1, 1), heads(9, 3), heads(7, 1)]))
def test_nothing_reads_the_scratch_page_or_a_pad(batch: PaddedBatch, counts: HeadCounts) -> None:
    layout = attention_layout(batch.rows, batch.num_positions, counts, strict=True)
    real = {row.offset + step for row in batch.rows for step in range(row.count)}
    for group in layout.groups:
        assert SCRATCH_PAGE not in group.table
        assert set((group.query_index // counts.fused).tolist()) <= real
        assert (group.limit >= 0).all() and (group.limit < group.kv_length).all()
    total = sum(len(group.query_index) for group in layout.groups)
    assert layout.output_index.min() >= 0 and layout.output_index.max() < total


@settings(max_examples=60, deadline=None)
@given(batch=batches(), group_size=st.sampled_from([1, 2, 3, 7]), window=WINDOWS)
def test_the_kv_positions_that_are_read_depend_on_the_position_alone(
    batch: PaddedBatch, group_size: int, window: int
) -> None:
    counts = heads(group_size, 1)
    layout = attention_layout(batch.rows, batch.num_positions, counts, window, strict=True)
    for row in batch.rows:
        for step in range(row.count):
            *_, limit, table = reads(layout, row.offset + step, 0, counts)
            position = row.first_position + step
            piece = position // KV_MULTIPLE
            hidden = piece * KV_MULTIPLE - window + 1 if window else 0
            start = max(0, hidden // KV_MULTIPLE) * KV_MULTIPLE
            assert position - limit == start
            assert start + len(table) * PAGE_SIZE == (piece + 1) * KV_MULTIPLE


@pytest.mark.parametrize(("window", "lengths"), [(0, [128, 256, 384, 512]), (40, [128, 256, 256])])
def test_what_lies_wholly_below_a_window_is_not_read(window: int, lengths: list[int]) -> None:
    (row,) = batch_of([planned([1] * 500, 0)], [()]).rows
    segments = segments_of([row], window, strict=True)
    assert [segment.kv_length for segment in segments][: len(lengths)] == lengths
    assert [segment.kv_start for segment in segments] == ([0, 0, 128, 256] if window else [0] * 4)


@settings(max_examples=60, deadline=None)
@given(batch=batches(), strict=st.booleans())
def test_segments_are_the_rows_cut_in_order(batch: PaddedBatch, strict: bool) -> None:
    segments = segments_of(batch.rows, strict=strict)
    found = [
        (segment.row, segment.offset + step, segment.first + step)
        for segment in segments
        for step in range(segment.count)
    ]
    assert found == [
        (number, row.offset + step, row.first_position + step)
        for number, row in enumerate(batch.rows)
        for step in range(row.count)
    ]


@pytest.mark.parametrize("group_size", range(1, 17))
def test_query_widths_fill_blocks_whose_rows_agree(group_size: int) -> None:
    for count in range(1, KV_MULTIPLE + 1):
        width = query_width(count, group_size, strict=True)

        def safe(candidate: int) -> bool:
            folded = candidate * group_size
            return folded >= 4 and folded % 32 not in (1, 2, 3)

        fitting = [each for each in QUERY_WIDTHS if each >= count and safe(each)]
        assert width == fitting[0]


def test_relaxed_widths_and_lengths_follow_the_step() -> None:
    assert [query_width(count, 3, strict=False) for count in (1, 5, 300)] == [1, 5, 300]
    short, long = (_only_row(count) for count in (3, 300))
    assert [segment.kv_length for segment in segments_of([short], strict=False)] == [32]
    assert [segment.kv_length for segment in segments_of([long], strict=False)] == [320]
    lengths = [segment.kv_length for segment in segments_of([long], strict=True)]
    assert lengths == [128, 256, 384]


def _only_row(count: int) -> PaddedRow:
    (row,) = batch_of([planned([1] * count, 0)], [()]).rows
    return row


def test_rows_of_one_length_share_a_call() -> None:
    rows = [planned([1], position) for position in (3, 90, 127, 128)]
    batch = batch_of(rows, [(0,)] * 2 + [()] * 2)
    layout = attention_layout(batch.rows, batch.num_positions, heads(9, 3), strict=True)
    shapes = sorted((group.kv_length, group.width, group.num_segments) for group in layout.groups)
    # Group size 3: a single query folds to 3 rows, so it runs as two.
    assert shapes == [(128, 2, 3), (256, 2, 1)]


def test_shuffled_rows_keep_what_they_attend_to() -> None:
    counts = heads(4, 2)

    def tables(order: Sequence[int]) -> dict[int, list[int]]:
        rows = [planned([1] * (1 + number), 100 + 50 * number) for number in order]
        batch = batch_of(rows, [()] * len(rows))
        layout = attention_layout(batch.rows, batch.num_positions, counts, strict=True)
        return {
            number: [len(reads(layout, row.offset, 0, counts)[-1]), row.count]
            for number, row in zip(order, batch.rows, strict=True)
        }

    assert tables([0, 1, 2, 3]) == tables([3, 1, 0, 2])
