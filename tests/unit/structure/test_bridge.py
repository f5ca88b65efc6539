"""The library knows our tokens: their bytes, which are special, which end an answer."""

from __future__ import annotations

import pytest
from gguf import TokenType

from benchmarks.toy_gguf import IM_END, tokenizer_metadata, toy_vocabulary
from specd.structure.bridge import TokenizerBridge
from specd.text.tokenizer import Tokenizer
from tests.support.requests import END_OF_TEXT_ID, EOS_ID, IM_START_ID, toy_tokenizer
from tests.unit.structure.support import (
    NUM_ROWS,
    byte_level,
    first_mask,
    fits,
    sentence_piece_bridge,
    sentence_piece_tokenizer,
    structure,
)

TEXTS = (
    "name",
    ' "open": true',
    "  two",
    "été à Besançon",
    "日本🙂",
    "\n\tif x:",
    "",
    "<|im_end|>",
)


def test_every_ordinary_id_stands_for_its_bytes_and_no_special_one_does() -> None:
    for tokenizer, bridge in (
        (toy_tokenizer(), byte_level()),
        (sentence_piece_tokenizer(), sentence_piece_bridge()),
    ):
        for token in range(tokenizer.vocab_size):
            if tokenizer.is_special(token):
                assert bridge.library.is_special_token(token)
            elif tokenizer.token_bytes(token) != b"\xff":  # no text has it; the library's own mark
                assert bridge.library.decode_bytes([token]) == tokenizer.token_bytes(token)


def test_masks_are_as_long_as_the_logits_and_rows_without_a_token_are_never_allowed() -> None:
    bridge = byte_level()
    assert bridge.library.vocab_size == bridge.vocab_size == NUM_ROWS
    anything = first_mask(structure("regex", "(?s:.)*"))
    assert max(anything) == EOS_ID < NUM_ROWS - 1


def test_free_text_may_be_any_text_and_no_special_token_but_the_ends() -> None:
    anything = first_mask(structure("regex", "(?s:.)*"))
    assert set(range(128)) - anything == set()
    assert IM_START_ID not in anything
    assert {EOS_ID, END_OF_TEXT_ID} <= anything


def test_all_ends_are_allowed_where_the_form_is_complete_and_none_before() -> None:
    number = structure("regex", "[0-9]{2,3}")
    ends = {EOS_ID, END_OF_TEXT_ID}
    assert [first_mask(number, text) & ends for text in ("", "1", "12", "123")] == [
        *(set(), set(), ends, ends)
    ]
    assert first_mask(number, "123") == ends


def test_an_end_that_its_file_calls_ordinary_text_is_no_text_here() -> None:
    """Chosen inside a string, it would end the answer in the middle of its form."""
    vocabulary = toy_vocabulary()
    end = vocabulary.id_of(IM_END)
    vocabulary.types[end] = int(TokenType.NORMAL)
    tokenizer = Tokenizer.from_gguf(tokenizer_metadata(vocabulary))
    assert end in tokenizer.eos_ids and not tokenizer.is_special(end)
    bridge = TokenizerBridge(tokenizer, tokenizer.vocab_size)
    letters = structure("regex", "[^z]{1,20}z")
    assert end not in first_mask(letters, bridge=bridge)
    assert end in first_mask(letters, "az", bridge=bridge)


@pytest.mark.parametrize("text", TEXTS)
def test_a_continuation_is_spelled_as_it_is(text: str) -> None:
    for bridge in (byte_level(), sentence_piece_bridge()):
        assert bridge.spelled(bridge.encode(text)) == text.encode()


def test_a_continuation_has_the_tokenizer_s_own_ids() -> None:
    expected = toy_tokenizer().encode("the harbour", parse_special=False, add_special=False)
    assert byte_level().encode("the harbour") == expected
    # Where the tokenizer puts a space before a text, a continuation has none.
    tokenizer, bridge = sentence_piece_tokenizer(), sentence_piece_bridge()
    assert tokenizer.adds_space
    [first, *_] = bridge.encode("captain")
    assert tokenizer.token_bytes(first).startswith(b"c")
    assert bridge.encode(" captain") == tokenizer.encode(
        "captain", parse_special=False, add_special=False
    )


def test_a_long_continuation_is_tokenised_in_part() -> None:
    text = "the harbour " * 10_000
    ids = byte_level().encode(text)
    assert 8 < len(ids) < 1000
    assert text.encode().startswith(byte_level().spelled(ids))


def test_what_the_vocabulary_cannot_express_is_left_out_of_forced_text() -> None:
    vocabulary = toy_vocabulary()
    vocabulary.types[4] = int(TokenType.CONTROL)  # the byte 0x04 is no text any more
    tokenizer = Tokenizer.from_gguf(tokenizer_metadata(vocabulary))
    bridge = TokenizerBridge(tokenizer, tokenizer.vocab_size)
    assert bridge.spelled(bridge.encode("a\x04b")) == b"ab"


def test_a_token_that_another_spells_too_is_allowed_with_it() -> None:
    vocabulary = toy_vocabulary()
    vocabulary.tokens[300] = vocabulary.tokens[ord("q")]
    metadata = tokenizer_metadata(vocabulary)
    metadata["tokenizer.ggml.merges"] = []
    tokenizer = Tokenizer.from_gguf(metadata)
    bridge = TokenizerBridge(tokenizer, tokenizer.vocab_size)
    assert {ord("q"), 300} <= first_mask(structure("regex", "[a-z]+"), bridge=bridge)


def test_a_space_before_an_answer_is_the_structure_s_to_allow() -> None:
    """An answer continues its prompt, so the space that a token begins with is a part of it."""
    bridge = sentence_piece_bridge()
    assert fits(structure("choice", "captain"), "captain", bridge)
    assert not fits(structure("choice", "captain"), " captain", bridge)
    assert fits(structure("choice", " captain"), " captain", bridge)
