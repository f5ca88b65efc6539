"""Promises of the tally: its counts add up for every history."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from specd.engine.events import DrafterTally
from specd.engine.tally import Tally

SETTINGS = settings(deadline=None, derandomize=True, max_examples=200)


@dataclass(frozen=True)
class Step:
    """A step that sampled. committed: tokens that counted, at most accepted by the target + 1."""

    maker: str | None
    num_draft: int
    accepted: int
    committed: int
    pads: int

    @property
    def counted(self) -> int:
        """Accepted tokens, cut at the end of the generation as the loop cuts them."""
        return min(self.accepted, self.committed)


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Steps of one request; only the last run may be cut."""
    steps = []
    for index in reversed(range(draw(st.integers(1, 20)))):
        maker = draw(st.sampled_from([None, "ngram", "model"]))
        num_draft = draw(st.integers(0, 8)) if maker else 0
        accepted = draw(st.integers(0, num_draft))
        committed = accepted + 1 if index else draw(st.integers(1, accepted + 1))
        steps.append(Step(maker, num_draft, accepted, committed, draw(st.integers(0, 3))))
    return steps


def tally_of(steps: list[Step]) -> Tally:
    tally = Tally()
    for step in steps:
        tally.verified(step.maker, step.num_draft, step.counted, step.pads, 0.5)
    return tally


def check_histogram(counts: DrafterTally) -> None:
    histogram = counts.accepted_length_histogram
    assert sum(histogram) == counts.verify_steps
    assert sum(i * n for i, n in enumerate(histogram)) == counts.accepted_draft_tokens
    assert counts.accepted_draft_tokens <= counts.draft_tokens


@SETTINGS
@given(histories())
def test_the_total_counts_every_step_that_sampled(steps: list[Step]) -> None:
    total = tally_of(steps).frozen().total
    check_histogram(total)
    assert total.verify_steps == len(steps)
    assert total.draft_tokens == sum(step.num_draft for step in steps)
    assert total.pad_positions == sum(step.pads for step in steps)
    assert total.verify_time_s == 0.5 * len(steps)


@SETTINGS
@given(histories())
def test_completion_tokens_are_accepted_and_verify_steps_less_the_final_cut(
    steps: list[Step],
) -> None:
    total = tally_of(steps).frozen().total
    completion = sum(step.committed for step in steps)
    cut = steps[-1].counted + 1 - steps[-1].committed
    assert completion == total.accepted_draft_tokens + total.verify_steps - cut
    assert total.accepted_draft_tokens <= completion


@SETTINGS
@given(histories())
def test_a_drafter_is_credited_with_the_steps_that_verified_its_draft(steps: list[Step]) -> None:
    stats = tally_of(steps).frozen()
    for name in ("ngram", "model"):
        own = [step for step in steps if step.maker == name and step.num_draft]
        assert (name in stats.by_drafter) == bool(own)
        counts = stats.by_drafter.get(name, DrafterTally())
        check_histogram(counts)
        assert counts.verify_steps == len(own)
        assert counts.draft_tokens == sum(step.num_draft for step in own)
        assert counts.accepted_draft_tokens == sum(step.counted for step in own)


def test_the_place_in_the_histogram_is_the_accepted_length() -> None:
    tally = Tally()
    for accepted in (0, 3, 3):
        tally.verified("ngram", 4, accepted, 0, 0.0)
    assert tally.frozen().total.accepted_length_histogram == (1, 0, 0, 2)


def test_one_token_drafted_and_right_is_an_acceptance_of_one() -> None:
    tally = Tally()
    for _ in range(5):
        tally.verified("ngram", 1, 1, pads=7, seconds=0.0)
    counts = tally.frozen().by_drafter["ngram"]
    assert counts.accepted_draft_tokens == counts.draft_tokens == counts.verify_steps == 5


def test_late_and_faulty_drafters_are_counted_each_and_in_the_total() -> None:
    tally = Tally()
    tally.drafted("ngram", 0.25, late=("model", "remote"), faults=("remote",))
    tally.drafted(None, 0.5, late=("model",), faults=())
    stats = tally.frozen()
    assert (stats.total.late, stats.total.faults, stats.total.draft_time_s) == (3, 1, 0.75)
    assert (stats.by_drafter["model"].late, stats.by_drafter["model"].faults) == (2, 0)
    assert (stats.by_drafter["remote"].late, stats.by_drafter["remote"].faults) == (1, 1)
    assert stats.by_drafter["ngram"].draft_time_s == 0.25


def test_a_frozen_tally_stays_as_it_is() -> None:
    tally = tally_of([Step("ngram", 2, 1, 2, 0)])
    before = tally.frozen()
    tally.verified("ngram", 2, 2, 0, 0.5)
    tally.drafted("ngram", 0.5, (), ())
    assert before == tally_of([Step("ngram", 2, 1, 2, 0)]).frozen()


def test_no_history_is_all_zero() -> None:
    stats = Tally().frozen()
    assert stats.total == DrafterTally()
    assert stats.by_drafter == {}
