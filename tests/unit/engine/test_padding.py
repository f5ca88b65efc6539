"""Promises of the padding stage, against a slow oracle that places one position at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specd.engine.padding import bucket_for, clean_draft, pad
from specd.engine.params import SamplingParams
from specd.engine.step_types import Choosing, CleanDraft, LayoutSpec, PaddedBatch, PlannedRow
from specd.kv.pages import PAGE_SIZE, RESERVED_PAGES, SCRATCH_PAGE, pages_for
from tests.support.null_device import check_layout

VOCAB = 50
PACKED = LayoutSpec(packed_buckets=(1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 512))
RECTANGLE = LayoutSpec(PACKED.packed_buckets, widths=(1, 2, 4, 8, 16), row_buckets=(1, 2, 4, 8, 16))
LAYOUTS = st.sampled_from([PACKED, RECTANGLE])
SETTINGS = settings(deadline=None, derandomize=True, max_examples=100)


# --- drafts ---

ODD_TOKENS = st.one_of(
    st.integers(-3, VOCAB + 3),
    st.integers(),
    st.booleans(),
    st.floats(),
    st.text(max_size=2),
    st.none(),
    st.integers(0, VOCAB - 1).map(np.int64),
    st.integers(0, VOCAB - 1).map(np.uint8),
    st.just(np.bool_(True)),
    st.just(np.float32(3)),
    st.just([1]),
)


def is_legal(token: Any) -> bool:
    if type(token) is not int and not isinstance(token, np.integer):
        return False
    return 0 <= int(token) < VOCAB


@SETTINGS
@given(st.lists(ODD_TOKENS, max_size=12), st.integers(-1, 12))
def test_a_draft_is_cut_at_its_allowance_and_at_its_first_bad_id(
    raw: list[Any], allowance: int
) -> None:
    cleaned = clean_draft(raw, allowance, VOCAB)
    expected = []
    fault = False
    for token in raw[: max(0, allowance)]:
        if not is_legal(token):
            fault = True
            break
        expected.append(int(token))
    assert list(cleaned.token_ids) == expected
    assert (cleaned.fault is not None) == fault
    assert all(type(token) is int for token in cleaned.token_ids)


@pytest.mark.parametrize("raw", [None, [], (), np.array([], np.int64), iter([])])
def test_no_draft_is_no_fault(raw: object) -> None:
    assert clean_draft(raw, 8, VOCAB) == CleanDraft()


@pytest.mark.parametrize("raw", [5, 1.5, "123", b"123", object(), np.array(3), [[1, 2]]])
def test_what_is_no_sequence_of_ids_is_a_fault_and_an_empty_draft(raw: object) -> None:
    cleaned = clean_draft(raw, 8, VOCAB)
    assert cleaned.token_ids == ()
    assert cleaned.fault is not None


@pytest.mark.parametrize("token", [True, False, np.bool_(True), 1.0, "1", None])
def test_a_value_that_only_looks_like_an_id_is_a_fault(token: object) -> None:
    cleaned = clean_draft([7, token, 9], 8, VOCAB)
    assert cleaned.token_ids == (7,)
    assert cleaned.fault is not None


def test_ten_thousand_tokens_are_cut_without_a_fault_and_not_read_to_the_end() -> None:
    num_read = 0

    def endless() -> Iterator[int]:
        nonlocal num_read
        while True:
            num_read += 1
            yield 3

    assert clean_draft([3] * 10_000, 5, VOCAB) == CleanDraft((3,) * 5)
    assert clean_draft(endless(), 5, VOCAB) == CleanDraft((3,) * 5)
    assert num_read == 5


def test_an_id_beyond_the_allowance_is_nobodys_business() -> None:
    assert clean_draft([1, 2, -7], 2, VOCAB) == CleanDraft((1, 2))


def test_a_draft_that_nobody_may_use_is_empty_and_no_fault() -> None:
    assert clean_draft([-1], 0, VOCAB) == clean_draft(5, 0, VOCAB) == CleanDraft()


class Raises:
    def __iter__(self) -> Iterator[int]:
        yield 1
        raise RuntimeError("out of ideas")


class Liar(int):
    """Compares as a legal id and is none."""

    def __le__(self, other: object) -> bool:
        return True

    def __ge__(self, other: object) -> bool:
        return True

    def __lt__(self, other: object) -> bool:
        return True


def test_a_draft_that_raises_while_read_is_a_fault() -> None:
    cleaned = clean_draft(Raises(), 8, VOCAB)
    assert cleaned.token_ids == ()
    assert cleaned.fault is not None


@pytest.mark.parametrize("token", [Liar(VOCAB), Liar(-1), Liar(10**30)])
def test_an_id_is_judged_by_its_value_and_not_by_what_it_says_of_itself(token: int) -> None:
    cleaned = clean_draft([4, token], 8, VOCAB)
    assert cleaned.token_ids == (4,)
    assert cleaned.fault is not None


def test_token_zero_is_a_draft() -> None:
    assert clean_draft([0, 0], 8, VOCAB) == CleanDraft((0, 0))


# --- buckets ---


@SETTINGS
@given(st.sets(st.integers(1, 200), min_size=1), st.integers(1, 250))
def test_the_bucket_is_the_smallest_that_holds_the_size(buckets: set[int], size: int) -> None:
    fitting = [bucket for bucket in buckets if bucket >= size]
    if fitting:
        assert bucket_for(size, sorted(buckets)) == min(fitting)
    else:
        with pytest.raises(ValueError, match="exceed"):
            bucket_for(size, sorted(buckets))


# --- layout ---


@dataclass(frozen=True)
class Step:
    rows: list[PlannedRow]
    drafts: list[CleanDraft]
    pages: list[list[int]]

    @property
    def counts(self) -> list[int]:
        return [
            len(r.tokens) + len(d.token_ids) for r, d in zip(self.rows, self.drafts, strict=True)
        ]

    def pad(self, layout: LayoutSpec) -> PaddedBatch:
        return pad(self.rows, self.drafts, self.pages, layout, [2])


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """Decode rows with and without drafts, prompt chunks that sample and that do not."""
    tokens = st.integers(0, VOCAB - 1)
    rows, drafts, pages = [], [], []
    free = draw(st.permutations(range(RESERVED_PAGES, 200)))
    for slot in range(draw(st.integers(1, 8))):
        chunk = draw(st.booleans())
        known = tuple(draw(st.lists(tokens, min_size=1, max_size=40 if chunk else 1)))
        samples = not chunk or draw(st.booleans())
        draft = () if chunk else tuple(draw(st.lists(tokens, max_size=15)))
        first = draw(st.integers(0, 100))
        row = PlannedRow(f"r{slot}", slot, known, first, samples, Choosing(SamplingParams()))
        count = pages_for(first + len(known) + len(draft)) + draw(st.integers(0, 1))
        rows.append(row)
        drafts.append(CleanDraft(draft))
        pages.append(free[:count])
        free = free[count:]
    return Step(rows, drafts, pages)


def expected_slots(step: Step) -> dict[tuple[int, int], int]:
    """KV slot by (row, text position)."""
    found = {}
    for index, row in enumerate(step.rows):
        for place in range(step.counts[index]):
            position = row.first_position + place
            page = step.pages[index][position // PAGE_SIZE]
            found[index, position] = page * PAGE_SIZE + position % PAGE_SIZE
    return found


@SETTINGS
@given(steps(), LAYOUTS)
def test_every_real_token_is_placed_once_with_its_position_and_slot(
    step: Step, layout: LayoutSpec
) -> None:
    batch = step.pad(layout)
    check_layout(batch, layout)
    slots = expected_slots(step)
    taken: set[int] = set()
    for index, (row, draft) in enumerate(zip(step.rows, step.drafts, strict=True)):
        placed = batch.rows[index]
        ids = [*row.tokens, *draft.token_ids]
        for place, token in enumerate(ids):
            flat = placed.offset + place
            assert flat not in taken
            taken.add(flat)
            position = row.first_position + place
            assert batch.tokens[flat] == token
            assert batch.positions[flat] == position
            assert batch.kv_slots[flat] == slots[index, position]
    for flat in set(range(batch.num_positions)) - taken:
        assert batch.kv_slots[flat] // PAGE_SIZE == SCRATCH_PAGE
    assert batch.num_real == len(taken) == sum(step.counts)
    assert batch.num_pads == batch.num_positions - len(taken)


@SETTINGS
@given(steps(), LAYOUTS)
def test_rows_keep_their_order_and_their_facts(step: Step, layout: LayoutSpec) -> None:
    batch = step.pad(layout)
    for index, placed in enumerate(batch.rows):
        row = step.rows[index]
        assert (placed.request_id, placed.slot) == (row.request_id, row.slot)
        assert placed.first_position == row.first_position
        assert placed.count == step.counts[index]
        assert placed.draft == step.drafts[index].token_ids
        assert placed.pages == tuple(step.pages[index])
        assert placed.samples == row.samples
        assert placed.choosing is row.choosing
    assert len(batch.rows) == len(step.rows)
    assert batch.fresh_pages == (2,)


@SETTINGS
@given(steps(), LAYOUTS)
def test_logits_are_wanted_of_the_last_known_token_and_of_each_draft_token(
    step: Step, layout: LayoutSpec
) -> None:
    batch = step.pad(layout)
    wanted: list[int] = []
    for row, draft, placed in zip(step.rows, step.drafts, batch.rows, strict=True):
        assert placed.sample_offset == len(wanted)
        if row.samples:
            last_known = placed.offset + len(row.tokens) - 1
            wanted += [last_known + place for place in range(len(draft.token_ids) + 1)]
    assert batch.sample_index.tolist() == wanted


@SETTINGS
@given(steps())
def test_packed_takes_the_smallest_total_that_holds_the_step(step: Step) -> None:
    batch = step.pad(PACKED)
    size = sum(step.counts)
    smallest = min(bucket for bucket in PACKED.packed_buckets if bucket >= size)
    assert batch.bucket == f"packed:{smallest}"
    assert batch.num_positions == smallest
    assert all(row.span == row.count for row in batch.rows)


def smallest(size: int, buckets: Sequence[int]) -> int:
    return min(bucket for bucket in buckets if bucket >= size)


@SETTINGS
@given(steps())
def test_a_rectangle_is_as_wide_as_the_longest_draft_and_chunks_are_packed_behind_it(
    step: Step,
) -> None:
    batch = step.pad(RECTANGLE)
    decode = [i for i, row in enumerate(step.rows) if len(row.tokens) == 1]
    chunks = [i for i, row in enumerate(step.rows) if len(row.tokens) > 1]
    names, total = [], 0
    if decode:
        width = smallest(max(step.counts[i] for i in decode), RECTANGLE.widths)
        height = smallest(len(decode), RECTANGLE.row_buckets)
        assert {batch.rows[i].span for i in decode} == {width}
        assert [batch.rows[i].offset for i in decode] == [n * width for n in range(len(decode))]
        names.append(f"{height}x{width}")
        total = height * width
    if chunks:
        size = smallest(sum(step.counts[i] for i in chunks), RECTANGLE.packed_buckets)
        assert batch.rows[chunks[0]].offset == total
        assert all(batch.rows[i].span == batch.rows[i].count for i in chunks)
        names.append(f"packed:{size}")
        total += size
    assert batch.bucket == "+".join(names)
    assert batch.num_positions == total


@SETTINGS
@given(steps(), LAYOUTS)
def test_what_a_row_gets_does_not_depend_on_the_values_of_its_tokens(
    step: Step, layout: LayoutSpec
) -> None:
    zeros = Step(
        [PlannedRow(r.request_id, r.slot, (0,) * len(r.tokens), r.first_position, r.samples,
                    r.choosing) for r in step.rows],
        [CleanDraft((0,) * len(d.token_ids)) for d in step.drafts],
        step.pages,
    )  # fmt: skip
    assume(step != zeros)
    batch, other = step.pad(layout), zeros.pad(layout)
    assert batch.bucket == other.bucket
    assert [r.draft_len for r in batch.rows] == [r.draft_len for r in other.rows]
    assert batch.positions.tolist() == other.positions.tolist()
    assert batch.kv_slots.tolist() == other.kv_slots.tolist()
    assert batch.sample_index.tolist() == other.sample_index.tolist()


def one_row(num_draft: int) -> Step:
    row = PlannedRow("r", 0, (7,), 10, True, Choosing(SamplingParams()))
    return Step([row], [CleanDraft((1,) * num_draft)], [[5, 6, 7, 8]])


@pytest.mark.parametrize("layout", [PACKED, RECTANGLE])
def test_a_step_without_drafts_has_no_pads(layout: LayoutSpec) -> None:
    batch = one_row(0).pad(layout)
    assert (batch.num_positions, batch.num_pads) == (1, 0)


def test_a_step_beyond_the_largest_bucket_is_refused() -> None:
    with pytest.raises(ValueError, match="exceed the largest bucket"):
        one_row(16).pad(RECTANGLE)
    with pytest.raises(ValueError, match="exceed the largest bucket"):
        one_row(4).pad(LayoutSpec((1, 2, 4)))
