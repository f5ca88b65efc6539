"""Promises of the waste counter."""

from __future__ import annotations

from specd.engine.padding import pad
from specd.engine.params import SamplingParams
from specd.engine.step_types import Choosing, CleanDraft, LayoutSpec, PaddedBatch, PlannedRow
from specd.engine.waste import BucketWaste, WasteCounter

PACKED = LayoutSpec((4, 8))
RECTANGLE = LayoutSpec((4, 8), widths=(4,), row_buckets=(2,))


def batch(*draft_sizes: int, layout: LayoutSpec = PACKED) -> PaddedBatch:
    rows = [
        PlannedRow(f"r{i}", i, (5,), 0, True, Choosing(SamplingParams()))
        for i in range(len(draft_sizes))
    ]
    drafts = [CleanDraft((0,) * size) for size in draft_sizes]
    return pad(rows, drafts, [[2 + i] for i in range(len(rows))], layout)


def test_nothing_is_counted_before_the_first_step() -> None:
    waste = WasteCounter()
    assert (waste.real_positions, waste.pad_positions, waste.by_bucket) == (0, 0, {})


def test_steps_of_a_bucket_are_summed_and_buckets_kept_apart() -> None:
    waste = WasteCounter()
    for sizes in ((2,), (0, 0), (1, 3)):
        waste.count(batch(*sizes))
    assert waste.by_bucket == {
        "packed:4": BucketWaste(steps=2, rows=3, real_positions=5, pad_positions=3),
        "packed:8": BucketWaste(steps=1, rows=2, real_positions=6, pad_positions=2),
    }
    assert (waste.real_positions, waste.pad_positions) == (11, 5)


def test_a_row_of_a_rectangle_that_is_all_pad_is_waste() -> None:
    waste = WasteCounter()
    waste.count(batch(1, layout=RECTANGLE))
    assert waste.by_bucket == {"2x4": BucketWaste(1, rows=1, real_positions=2, pad_positions=6)}


def test_a_draft_of_token_zero_is_real() -> None:
    waste = WasteCounter()
    waste.count(batch(3))
    assert (waste.real_positions, waste.pad_positions) == (4, 0)
