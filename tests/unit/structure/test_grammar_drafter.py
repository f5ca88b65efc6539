"""The drafter `grammar` proposes what each row's structure forces, and nothing to others."""

from __future__ import annotations

import pytest

from drafters.contract import DraftContext, SamplingHint
from specd.app import _with_grammar
from specd.engine.guest import Guest
from specd.structure.drafter import NAME, GrammarDrafter
from tests.unit.structure.support import bytes_of, ids_of, sequences, structure


def test_each_row_gets_what_its_own_structure_forces_within_its_budget() -> None:
    drafter = GrammarDrafter()
    guest = Guest(NAME, drafter)
    with sequences() as start:
        forced, free = (
            start(structure("choice", "the harbour")),
            start(structure("regex", "[a-z]+")),
        )
        drafter.live.update({"forced": forced, "free": free})
        rows = [DraftContext(name, [1, 2]) for name in ("forced", "free", "unstructured")]
        for row in rows:
            guest.begin(row.request_id, [1], SamplingHint(0.0, 0))
        assert guest.propose(rows, [9, 9, 9]) == [ids_of("the harbour"), [], None]
        assert guest.propose(rows, [1, 1, 1]) == [ids_of("the harbour")[:1], [], None]
        free.commit(bytes_of("a"))
        assert guest.num_faults == 0


def test_it_answers_on_the_event_loop() -> None:
    assert GrammarDrafter.inline


@pytest.mark.parametrize(
    ("settings", "drafters"),
    [
        ((), []),
        (("ngram",), [NAME, "ngram"]),
        ((NAME,), [NAME]),
        (("ngram", NAME), [NAME, "ngram"]),
    ],
)
def test_every_daemon_that_drafts_at_all_has_it_and_asks_it_first(
    settings: tuple[str, ...], drafters: list[str]
) -> None:
    assert list(_with_grammar(settings, GrammarDrafter())) == drafters
