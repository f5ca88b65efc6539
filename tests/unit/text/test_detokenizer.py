"""Streaming text equals whole text, for any ids, and never shows half a character."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.toy_gguf import IM_END
from specd.text.detokenizer import Detokenizer
from tests.unit.text.support import toy_tokenizer

# The last few are the specials and ids beyond the vocabulary.
IDS = st.lists(st.integers(0, 520) | st.integers(500, 520), max_size=60)


def pieces(ids: list[int], *, skip_special: bool = True) -> list[str]:
    detokenizer = Detokenizer(toy_tokenizer(), skip_special=skip_special)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


def encode(text: str) -> list[int]:
    return toy_tokenizer().encode(text, parse_special=True, add_special=False)


@given(ids=IDS, skip_special=st.booleans())
def test_pieces_joined_are_the_whole_decode(ids: list[int], skip_special: bool) -> None:
    whole = toy_tokenizer().decode(ids, skip_special=skip_special)
    assert "".join(pieces(ids, skip_special=skip_special)) == whole


@given(st.text())
def test_a_sound_text_streams_without_replacement_characters(text: str) -> None:
    assert "".join(pieces(encode(text))) == text


@given(st.text())
def test_every_piece_can_be_sent_as_a_string(text: str) -> None:
    ids = encode(text)
    for cut in range(len(ids) + 1):
        for piece in pieces(ids[:cut]):
            piece.encode()


def test_an_emoji_appears_whole_with_its_last_byte() -> None:
    assert pieces(encode("🙂")) == ["", "", "", "🙂", ""]


def test_scripts_of_many_bytes_lose_nothing() -> None:
    for text in ("안녕하세요 세계", "สวัสดีชาวโลก", "नमस्ते दुनिया", "你好世界", "ďábel"):
        assert "".join(pieces(encode(text * 50))) == text * 50


def test_half_a_character_at_the_end_becomes_one_replacement_character() -> None:
    assert pieces(encode("a🙂")[:-1]) == ["a", "", "", "", "\ufffd"]


def test_a_broken_character_is_replaced_as_soon_as_it_is_certain() -> None:
    assert pieces([*encode("🙂")[:2], *encode("a")]) == ["", "", "\ufffda", ""]


def test_specials_appear_only_where_they_are_not_skipped() -> None:
    ids = encode("a" + IM_END)
    assert pieces(ids, skip_special=False) == ["a", IM_END, ""]
    assert pieces(ids, skip_special=True) == ["a", "", ""]


def test_a_skipped_special_does_not_break_a_character_apart() -> None:
    first, *rest = encode("é")
    [end] = encode(IM_END)
    assert pieces([first, end, *rest]) == ["", "", "é", ""]


def test_answers_begin_clean_whatever_the_prompt_ended_with() -> None:
    # The detokenizer never sees the prompt's first half of an emoji.
    assert pieces(encode("🙂")[2:] + encode("ok")) == ["\ufffd", "\ufffd", "o", "k", ""]
