"""What padding costs: real and pad positions of the daemon's steps, by bucket."""

from __future__ import annotations

from dataclasses import dataclass

from specd.engine.step_types import PaddedBatch


@dataclass(slots=True)
class BucketWaste:
    """Sums over the steps that ran in one bucket."""

    steps: int = 0
    rows: int = 0
    real_positions: int = 0
    pad_positions: int = 0


class WasteCounter:
    """Counts since the start; `by_bucket` is keyed by `PaddedBatch.bucket`."""

    def __init__(self) -> None:
        self.by_bucket: dict[str, BucketWaste] = {}

    def count(self, batch: PaddedBatch) -> None:
        waste = self.by_bucket.setdefault(batch.bucket, BucketWaste())
        waste.steps += 1
        waste.rows += len(batch.rows)
        waste.real_positions += batch.num_real
        waste.pad_positions += batch.num_pads

    @property
    def real_positions(self) -> int:
        return sum(waste.real_positions for waste in self.by_bucket.values())

    @property
    def pad_positions(self) -> int:
        return sum(waste.pad_positions for waste in self.by_bucket.values())
