"""What speculation did for one generation: total, and per drafter.

Invariants, for the total and for every drafter: sum(h) == verify_steps and
sum(i * h[i]) == accepted_draft_tokens, with h the accepted-length histogram.

For the total, whatever ended the generation: completion tokens == accepted_draft_tokens +
verify_steps - cut. A step gives a sequence the draft tokens that were accepted and one of the
target's own behind them. Only the end of the sequence cuts such a run, and what is cut is counted
nowhere: where the last token is an accepted draft token, accepted ones behind it are not accepted,
and the target's own, which the step still counts one for, is missing. So `cut` is the number of
sequences whose last token was an accepted draft token: 0 or 1 for each. A step whose result nobody
takes, because the generation was aborted or cancelled meanwhile or its row failed, counts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from specd.engine.events import DrafterTally, SpeculationStats


@dataclass(slots=True)
class _Counts:
    draft_tokens: int = 0
    pad_positions: int = 0
    late: int = 0
    faults: int = 0
    draft_time_s: float = 0.0
    verify_time_s: float = 0.0
    histogram: list[int] = field(default_factory=list)

    def verified(self, num_draft: int, accepted: int, pads: int, seconds: float) -> None:
        self.draft_tokens += num_draft
        self.pad_positions += pads
        self.verify_time_s += seconds
        self.histogram.extend([0] * (accepted + 1 - len(self.histogram)))
        self.histogram[accepted] += 1

    def frozen(self) -> DrafterTally:
        histogram = tuple(self.histogram)
        return DrafterTally(
            verify_steps=sum(histogram),
            draft_tokens=self.draft_tokens,
            accepted_draft_tokens=sum(size * count for size, count in enumerate(histogram)),
            accepted_length_histogram=histogram,
            pad_positions=self.pad_positions,
            late=self.late,
            faults=self.faults,
            draft_time_s=self.draft_time_s,
            verify_time_s=self.verify_time_s,
        )


class Tally:
    """Counts over all steps of all sequences, changed by the loop."""

    def __init__(self) -> None:
        self._total = _Counts()
        self._by_drafter: dict[str, _Counts] = {}

    def _of(self, drafter: str) -> _Counts:
        return self._by_drafter.setdefault(drafter, _Counts())

    def drafted(
        self, maker: str | None, seconds: float, late: Iterable[str], faults: Iterable[str]
    ) -> None:
        """A draft was asked for; `seconds` is how long the row waited for it."""
        self._total.draft_time_s += seconds
        if maker is not None:
            self._of(maker).draft_time_s += seconds
        for drafter in late:
            self._total.late += 1
            self._of(drafter).late += 1
        for drafter in faults:
            self._total.faults += 1
            self._of(drafter).faults += 1

    def verified(
        self, maker: str | None, num_draft: int, accepted: int, pads: int, seconds: float
    ) -> None:
        """A step sampled; `maker` made its draft, None if it had none."""
        self._total.verified(num_draft, accepted, pads, seconds)
        if maker is not None and num_draft:
            self._of(maker).verified(num_draft, accepted, pads, seconds)

    def padded(self, pads: int) -> None:
        """A row that did not sample had so many pads."""
        self._total.pad_positions += pads

    def frozen(self) -> SpeculationStats:
        return SpeculationStats(
            total=self._total.frozen(),
            by_drafter={name: counts.frozen() for name, counts in self._by_drafter.items()},
        )
