"""A sequence in its structure: masks follow committed tokens, whatever was tried in between."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from llguidance import LLMatcher

from specd.engine.step_types import Words
from specd.structure.compiling import compiled
from specd.structure.matching import SequenceStructure
from tests.support.requests import END_OF_TEXT_ID, EOS_ID, IM_START_ID, VOCAB_SIZE
from tests.unit.structure.support import (
    GRAMMARS,
    PERSON,
    TOO_COMPLEX,
    allowed,
    byte_level,
    bytes_of,
    first_mask,
    ids_of,
    mask_behind,
    schema,
    sequences,
    structure,
)

ENDS = {EOS_ID, END_OF_TEXT_ID}


def plain_walk(sequence: SequenceStructure, choose: random.Random) -> tuple[list[int], list[Words]]:
    """An answer of at most 60 tokens, one at a time, and the mask before each and behind it."""
    answer, masks = list[int](), list[Words]()
    while len(answer) < 60:
        masks.append(mask_behind(sequence))
        assert sequence.problem is None
        token = choose.choice(sorted(allowed(masks[-1])))
        if token in ENDS:
            return answer, masks
        answer.append(token)
        sequence.commit([token])
    masks.append(mask_behind(sequence))
    return answer, masks


def some_draft(
    sequence: SequenceStructure, coming: Sequence[int], name: str, choose: random.Random
) -> list[int]:
    """True, wrong behind a true beginning, random, legal by another way, or forced."""
    size = choose.randint(1, 7)
    match choose.randrange(6):
        case 0:
            return list(coming[:size])
        case 1:
            return [*coming[: size - 1], choose.randrange(VOCAB_SIZE)]
        case 2:
            return [choose.randrange(VOCAB_SIZE) for _ in range(size)]
        case 3:
            return sequence.forced(size)
        case 4:
            return []
    other = sequence._matcher
    assert other is not None
    other, draft = other.deep_copy(), list[int]()
    while len(draft) < size and not other.is_stopped():
        mask = np.zeros(byte_level().num_words, np.uint32)
        other.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        legal = sorted(allowed(mask) - ENDS)
        if other.is_error() or not legal or not other.consume_token(choose.choice(legal)):
            break
        draft.append(legal[0])
    return draft


def agreeing(draft: Sequence[int], answer: Sequence[int]) -> int:
    pairs = enumerate(zip(draft, answer, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(draft), len(answer)))


@pytest.mark.parametrize("name", GRAMMARS)
def test_no_draft_changes_a_mask(name: str) -> None:
    choose = random.Random(name)
    with sequences() as start:
        for _ in range(4):
            answer, masks = plain_walk(start(GRAMMARS[name]), choose)
            sequence, at = start(GRAMMARS[name]), 0
            while True:
                draft = sequence.legal_prefix(some_draft(sequence, answer[at:], name, choose))
                accepted = agreeing(draft, answer[at:])
                found = sequence.masks(draft).result()
                assert found.shape == (len(draft) + 1, byte_level().num_words)
                assert found.dtype == np.uint32
                for place in range(accepted + 1):
                    assert np.array_equal(found[place], masks[at + place])
                if at + accepted >= len(answer):
                    break
                sequence.commit(answer[at : at + accepted + 1])
                at += accepted + 1


def test_a_draft_is_cut_at_the_first_token_that_the_structure_forbids() -> None:
    with sequences() as start:
        sequence = start(structure("regex", "[0-9]+"))
        sequence.commit(bytes_of("1"))
        assert sequence.legal_prefix(bytes_of("23x4")) == tuple(bytes_of("23"))
        assert sequence.legal_prefix(bytes_of("x234")) == ()
        assert sequence.legal_prefix([]) == ()


def test_a_draft_is_cut_before_an_end_and_has_none_behind_it() -> None:
    with sequences() as start:
        sequence = start(structure("regex", "[0-9]+"))
        for end in sorted(ENDS):
            draft = [*bytes_of("12"), end, *bytes_of("3")]
            assert sequence.legal_prefix(draft) == tuple(bytes_of("12"))
        assert sequence.legal_prefix([EOS_ID]) == ()


def test_a_draft_is_cut_where_the_form_is_complete() -> None:
    with sequences() as start:
        sequence = start(structure("choice", "yes", "no"))
        draft = sequence.legal_prefix(bytes_of("yes yes"))
        assert draft == tuple(bytes_of("yes"))
        assert allowed(mask_behind(sequence, draft)) == ENDS
        sequence.commit(bytes_of("yes"))
        assert sequence.legal_prefix(bytes_of("no")) == ()
        assert sequence.forced(7) == []
        assert allowed(mask_behind(sequence)) == ENDS


def test_forced_tokens_are_those_that_the_masks_force() -> None:
    choose = random.Random(3)
    with sequences() as start:
        sequence, num_forced = start(schema(PERSON)), 0
        for _ in range(60):
            certain = allowed(mask_behind(sequence))
            forced = sequence.forced(7)
            if len(certain) == 1 and not certain <= ENDS:
                assert forced[:1] == list(certain)
                num_forced += len(forced)
            token = choose.choice(sorted(certain))
            if token in ENDS:
                break
            sequence.commit([token])
        assert num_forced > 10


def test_forced_tokens_are_as_many_as_fit() -> None:
    with sequences() as start:
        sequence = start(structure("choice", "the harbour at seven and the other boats"))
        text = "the harbour at seven and the other boats"
        assert sequence.forced(100) == ids_of(text)
        assert sequence.forced(3) == ids_of(text)[:3]
        assert sequence.legal_prefix(sequence.forced(100)) == tuple(ids_of(text))


def test_the_end_of_a_forced_text_is_drafted_where_it_is_longer_than_a_byte() -> None:
    with sequences() as start:
        # The space may be part of the next word, so it is the model's to choose.
        sequence = start(structure("regex", "name: [a-z]+"))
        assert byte_level().spelled(sequence.forced(20)) in {b"name:", b"name"}
        sequence = start(structure("regex", r'"name": \[ "[a-z]+"'))
        assert byte_level().spelled(sequence.forced(20)) == b'"name": [ "'


def test_token_ids_that_a_grammar_forces_are_drafted_as_ids() -> None:
    with sequences() as start:
        sequence = start(structure("lark", 'start: "xy" <[300]> <|im_start|> "z"'))
        forced = sequence.forced(20)
        assert forced[:1] == ids_of("xy")[:1]
        assert sequence.legal_prefix(forced) == tuple(forced)
        sequence.commit([*ids_of("xy"), 300])
        assert allowed(mask_behind(sequence)) == {IM_START_ID}


def test_a_long_forced_text_costs_no_more_at_each_step_than_a_short_one() -> None:
    """Its tokens are looked at again at each position: all of 240 kB would be 250 ms."""
    with sequences() as start:
        sequence = start(structure("choice", "the harbour " * 20_000))
        encoded: list[int] = []
        bridge = sequence._bridge
        own = bridge._continuing
        bridge._continuing = lambda text: encoded.append(len(text)) or own(text)  # type: ignore[method-assign]
        try:
            mask_behind(sequence)
            sequence.forced(7)
        finally:
            del bridge._continuing
        assert encoded and max(encoded) <= bridge._longest


def test_where_nothing_can_follow_the_mask_is_empty_and_the_problem_told() -> None:
    with sequences() as start:
        sequence = start(structure("lark", TOO_COMPLEX))
        assert set(range(128)) & allowed(mask_behind(sequence)) == set(bytes_of("ab"))
        sequence.commit(bytes_of("b"))
        for _ in range(2):
            assert allowed(mask_behind(sequence)) == set()
            assert sequence.problem is not None and "too many" in sequence.problem
        assert sequence.legal_prefix(bytes_of("1")) == ()


def test_a_draft_that_is_too_complex_costs_its_own_sequence_nothing() -> None:
    params = structure("lark", TOO_COMPLEX)
    with sequences() as start:
        plain, drafted = start(params), start(params)
        for token in bytes_of("azby"):
            draft = drafted.legal_prefix(bytes_of("b1234"))
            masks = drafted.masks(draft).result()
            assert np.array_equal(masks[0], mask_behind(plain))
            assert drafted.problem is None
            drafted.commit([token])
            plain.commit([token])
        # At the start the bad way was open, and its masks were empty.
        first = start(params)
        draft = first.legal_prefix(bytes_of("b1"))
        assert len(draft) == 2
        assert [bool(mask.any()) for mask in first.masks(draft).result()] == [True, False, False]
        assert allowed(mask_behind(first)) == first_mask(params)


def test_a_matcher_that_broke_is_made_again_from_the_committed_tokens() -> None:
    made: list[LLMatcher] = []
    with sequences(made=made) as start:
        sequence = start(schema(PERSON))
        committed = ids_of('{"name": "A')
        sequence.commit(committed)
        wanted = mask_behind(sequence)
        sequence.forced(1)  # on a copy, which may have broken it
        assert not made[0].consume_token(EOS_ID), "it is broken now"
        assert np.array_equal(mask_behind(sequence), wanted)
        assert sequence.problem is None
        assert len(made) == 2
        sequence.commit(bytes_of("d"))
        assert np.array_equal(mask_behind(sequence, bytes_of("a")), mask_behind(sequence, [97]))


def test_a_failure_of_the_grammar_itself_is_paid_for_once() -> None:
    made: list[LLMatcher] = []
    with sequences(made=made) as start:
        sequence = start(structure("lark", TOO_COMPLEX))
        mask_behind(sequence)
        sequence.commit(bytes_of("b"))
        assert allowed(mask_behind(sequence)) == set()
        assert sequence.problem is not None and "too many" in sequence.problem
        assert len(made) == 1, "no draft was tried, so nothing else can have broken it"


def test_a_token_that_cannot_be_is_told_as_a_problem() -> None:
    with sequences() as start:
        sequence = start(structure("regex", "[0-9]+"))
        sequence.commit(bytes_of("x"))
        assert sequence.forced(7) == [] and sequence.legal_prefix(bytes_of("1")) == ()
        assert allowed(mask_behind(sequence)) == set()
        assert sequence.problem is not None and "doesn't satisfy" in sequence.problem


def test_closing_lets_the_matcher_go_once() -> None:
    closed: list[None] = []
    live: dict[str, SequenceStructure] = {}
    with ThreadPoolExecutor(1) as threads:
        sequence = SequenceStructure(
            byte_level(),
            compiled(structure("regex", "a+"), byte_level()),
            lambda: compiled(structure("regex", "a+"), byte_level()),
            threads=threads,
            live=live,
            on_close=lambda: closed.append(None),
        )
        sequence.begin("r")
        assert live == {"r": sequence}
        sequence.close()
        sequence.close()
        assert (closed, live) == ([None], {})
        assert sequence._matcher is None
