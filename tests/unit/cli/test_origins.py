"""Text by origin against the bytes of the vocabulary, over streams that the daemon could make."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from specd_client import Delta, SpeculationStep

from specd.cli.origins import Origins, origins_of
from tests.unit.cli.streams import Characters, Daemon, deltas_of, merged, runs_of, truth
from tests.unit.text.support import toy_tokenizer

NUM_STREAMS = 400
# Whole words, half characters of two, three and four bytes, and text that breaks off.
TEXTS = ("The ferry", " leaves", "é", "漢字", "🚢", "한글", "\n", "return total", "ab", "\ufffd")


def _ids(text: str) -> list[int]:
    return toy_tokenizer().encode(text, parse_special=False, add_special=False)


def _tokens(shuffle: random.Random, num_tokens: int) -> list[int]:
    """Mostly text, here and there any token at all: broken bytes, specials, unused ones."""
    found: list[int] = []
    while len(found) < num_tokens:
        if shuffle.random() < 0.7:
            found += _ids(shuffle.choice(TEXTS))
        else:
            found.append(shuffle.randrange(toy_tokenizer().vocab_size + 2))
    return found[:num_tokens]


async def _shown(deltas: Sequence[Delta], daemon: Daemon) -> Characters:
    """What the pieces say of each character; checks that no delta is held back."""
    origins = Origins(daemon.detokenize)
    characters: Characters = []
    for delta in deltas:
        pieces = await origins.split(delta)
        assert "".join(piece.text for piece in pieces) == delta.text
        characters += [(c, piece.from_draft) for piece in pieces for c in piece.text]
    return characters


@pytest.mark.asyncio
@pytest.mark.parametrize("stops", [(), ("rr", " leaves the", "字🚢", "return totals", "éé")])
async def test_each_character_has_the_origin_of_the_token_that_completes_it(
    stops: tuple[str, ...],
) -> None:
    seen = set()
    for seed in range(NUM_STREAMS):
        shuffle = random.Random(seed)
        tokens = _tokens(shuffle, shuffle.choice((1, 5, 40, 200)))
        deltas = list(deltas_of(runs_of(tokens, shuffle), stops))
        shown = await _shown(list(merged(deltas, shuffle)), Daemon())
        assert shown == truth(deltas), f"seed {seed}"
        seen |= {(character.isascii(), from_draft) for character, from_draft in shown}
    assert len(seen) == 4, "the streams show nothing"


@pytest.mark.asyncio
async def test_a_character_split_over_a_run_belongs_to_the_token_that_completes_it() -> None:
    ship = _ids("🚢")
    assert len(ship) == 4
    for accepted, from_draft in ((3, False), (4, True)):
        run = (accepted, [*ship, *_ids("a")][: accepted + 1])
        shown = await _shown(list(deltas_of([(0, _ids("a")), run])), Daemon())
        assert shown[:2] == [("a", False), ("🚢", from_draft)]


@pytest.mark.asyncio
async def test_a_run_that_the_end_cuts_keeps_its_origins() -> None:
    runs = [(0, _ids("a")), (3, [*_ids("b"), *_ids("c"), *_ids("d"), *_ids("e")])]
    shown = await _shown(list(deltas_of(runs, num_tokens=3)), Daemon())
    assert shown == [("a", False), ("b", True), ("c", True)]


@pytest.mark.asyncio
async def test_an_answer_without_drafts_asks_for_nothing_before_its_window_is_full() -> None:
    daemon = Daemon()
    await _shown(list(deltas_of([(0, [token]) for token in _ids("ab" * 30)])), daemon)
    assert daemon.asked == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "tokens", [_ids("The ferry leaves the harbour. ") * 800, [0xFF] * 8000, _ids("🚢") * 2000]
)
async def test_a_long_answer_costs_in_proportion_to_its_length(tokens: list[int]) -> None:
    runs = [(3, tokens[place : place + 4]) for place in range(0, 8000, 4)]
    daemon = Daemon()
    await _shown(list(deltas_of(runs, ("\n\n\n",))), daemon)
    # Two calls for each of 2,000 steps and one for each window of about 64 ids.
    assert len(daemon.asked) < 2 * 2000 + 200
    assert max(daemon.asked) < 64 + 16


@pytest.mark.asyncio
async def test_text_without_ids_is_the_targets_own() -> None:
    shown = await _shown([Delta(0, "held", (), (), 3, ())], Daemon())
    assert shown == [(character, False) for character in "held"]


def test_a_run_is_its_accepted_draft_tokens_and_one_of_the_targets_own() -> None:
    steps = (SpeculationStep("ngram", 7, 2), SpeculationStep(None, 0, 0))
    assert origins_of(steps, 4) == [True, True, False, False]
    assert origins_of(steps, 1) == [True]
