"""The line of figures below an answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from specd_client.events import DrafterTally, SpeculationStats

from specd.cli.shown import figures

NONE = DrafterTally(40, 0, 0, (40,), 0, 0, 0, 0.0, 0.0)
SOME = replace(NONE, verify_steps=16, draft_tokens=90, accepted_draft_tokens=24)


def _figures(total: DrafterTally, **by_drafter: DrafterTally) -> str:
    return figures(SpeculationStats(total, by_drafter), 40, 12.3)


def test_what_was_accepted_is_told_in_words_that_do_not_count_the_targets_own_tokens() -> None:
    assert _figures(SOME, ngram=SOME) == (
        "40 tokens in 16 steps, 12 tokens/s; 24 of 90 drafts accepted, "
        "1.50 accepted drafts per step; drafters: ngram"
    )


def test_an_answer_without_drafts_says_so_and_names_no_drafter() -> None:
    assert _figures(NONE) == "40 tokens in 40 steps, 12 tokens/s; no drafts"


@pytest.mark.parametrize(
    ("late", "faults", "told"),
    [
        (2, 0, "eagle: late 2 times"),
        (0, 1, "eagle: 1 fault"),
        (1, 3, "eagle: late 1 time, 3 faults"),
    ],
)
def test_what_drafters_failed_to_bring_is_told(late: int, faults: int, told: str) -> None:
    eagle = replace(NONE, late=late, faults=faults)
    assert _figures(NONE, eagle=eagle).endswith(f"; no drafts; {told}")
    assert _figures(SOME, ngram=SOME, eagle=eagle).endswith(f"; drafters: ngram; {told}")
