"""Text to ids and back, over the toy vocabulary and, marked `model`, over the default model's."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.toy_gguf import (
    END_OF_TEXT,
    IM_END,
    IM_START,
    ToyVocabulary,
    tokenizer_metadata,
    toy_vocabulary,
)
from specd.errors import InvalidField, ModelFileError
from specd.model.catalog import CATALOG, DEFAULT_MODEL
from specd.model.gguf_file import GGUFFile
from specd.text.tokenizer import Tokenizer
from tests.unit.text.support import USER_DEFINED, toy_tokenizer

REFERENCE = Path(__file__).parents[2] / "data" / "reference_tokens.json"


def metadata_with(**changes: object) -> dict[str, object]:
    """The toy's metadata with `tokenizer.ggml.*` keys changed; None removes one."""
    metadata = tokenizer_metadata(toy_vocabulary())
    for name, value in changes.items():
        metadata[f"tokenizer.ggml.{name}"] = value
    return {key: value for key, value in metadata.items() if value is not None}


def _typed(vocabulary: ToyVocabulary) -> list[tuple[str, int]]:
    return list(zip(vocabulary.tokens, vocabulary.types, strict=True))


def encode(text: str, tokenizer: Tokenizer | None = None, **options: bool) -> list[int]:
    chosen = {"parse_special": True, "add_special": False} | options
    return (tokenizer or toy_tokenizer()).encode(text, **chosen)


@given(st.text())
def test_every_text_survives_encoding(text: str) -> None:
    for parse_special in (True, False):
        ids = encode(text, parse_special=parse_special)
        assert toy_tokenizer().decode(ids, skip_special=False) == text


def test_merges_are_used() -> None:
    assert len(encode("the captain counts the passengers")) < 15


def test_an_emoji_splits_over_byte_tokens() -> None:
    ids = encode("🙂")
    assert [toy_tokenizer().token_bytes(i) for i in ids] == [b"\xf0", b"\x9f", b"\x99", b"\x82"]


def test_special_text_is_one_id_where_parsed() -> None:
    ids = encode(f"{IM_START}a{IM_END}")
    assert [toy_tokenizer().token_bytes(i) for i in ids] == [b"<|im_start|>", b"a", b"<|im_end|>"]


def test_special_text_is_plain_text_where_not_parsed() -> None:
    ids = encode(f"{IM_START}a{IM_END}", parse_special=False)
    assert not any(toy_tokenizer().is_special(i) for i in ids)
    assert toy_tokenizer().decode(ids, skip_special=True) == f"{IM_START}a{IM_END}"


@pytest.mark.parametrize("text", USER_DEFINED)
@pytest.mark.parametrize("parse_special", [True, False])
def test_user_defined_tokens_are_single_ids(text: str, parse_special: bool) -> None:
    ids = encode(f"a{text}b", parse_special=parse_special)
    assert [toy_tokenizer().token_bytes(i) for i in ids] == [b"a", text.encode(), b"b"]


def test_user_defined_tokens_are_text_of_an_answer() -> None:
    ids = encode("<think>a</think>" + IM_END)
    assert toy_tokenizer().decode(ids, skip_special=True) == "<think>a</think>"


def test_no_space_appears_after_a_control_token() -> None:
    ids = encode(f"{IM_END}word {IM_END} word")
    assert toy_tokenizer().decode(ids, skip_special=False) == f"{IM_END}word {IM_END} word"
    assert toy_tokenizer().decode(ids, skip_special=True) == "word  word"


def test_bytes_that_are_no_text_become_replacement_characters() -> None:
    cut = encode("a🙂")[:-1]
    assert toy_tokenizer().decode(cut, skip_special=False) == "a\ufffd"


def test_ids_beyond_the_vocabulary_have_no_text() -> None:
    tokenizer = toy_tokenizer()
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert not tokenizer.is_special(tokenizer.vocab_size)


def test_every_named_or_well_known_end_ends_a_generation() -> None:
    tokenizer = Tokenizer.from_gguf(metadata_with(eot_token_id=7, eom_token_id=9))
    vocabulary = toy_vocabulary()
    marked = {vocabulary.id_of(IM_END), vocabulary.id_of(END_OF_TEXT)}
    assert tokenizer.eos_ids == marked | {7, 9}


def test_an_end_marker_that_is_an_ordinary_token_ends_nothing() -> None:
    vocabulary = toy_vocabulary()
    types = [1] * len(vocabulary.tokens)
    tokenizer = Tokenizer.from_gguf(metadata_with(token_type=types))
    assert tokenizer.eos_ids == {vocabulary.id_of(IM_END)}


def test_bos_and_eos_are_added_only_where_file_and_caller_ask() -> None:
    asked = Tokenizer.from_gguf(metadata_with(add_bos_token=True, add_eos_token=True))
    plain = encode("a", asked)
    assert encode("a", asked, add_special=True) == [asked.bos_id, *plain, asked.eos_id]
    assert encode("a", add_special=True) == plain


def test_equal_vocabularies_have_equal_fingerprints() -> None:
    tokens = [*toy_vocabulary().tokens]
    tokens[300] += "x"
    changed = Tokenizer.from_gguf(metadata_with(tokens=tokens, merges=[]))
    same = Tokenizer.from_gguf(metadata_with(pre="qwen2"))
    original = Tokenizer.from_gguf(metadata_with())
    assert original.fingerprint == same.fingerprint != changed.fingerprint


def test_a_character_without_tokens_is_refused_and_named() -> None:
    tokens = ["\u0134" if token == "Ă" else token for token in toy_vocabulary().tokens]
    tokenizer = Tokenizer.from_gguf(metadata_with(tokens=tokens))
    with pytest.raises(InvalidField, match=r"U\+0002 \(character 3 of the text\)"):
        encode("aé🙂\x02b", tokenizer)
    assert encode("aé🙂b", tokenizer)


def test_a_byte_that_only_a_control_token_has_cannot_be_expressed() -> None:
    vocabulary = toy_vocabulary()
    types = [3 if token == "7" else kind for token, kind in _typed(vocabulary)]
    tokenizer = Tokenizer.from_gguf(metadata_with(token_type=types))
    for parse_special in (True, False):
        with pytest.raises(InvalidField, match=r"U\+0037 \(character 1"):
            encode("a7", tokenizer, parse_special=parse_special)


def test_no_merge_makes_a_control_token() -> None:
    vocabulary = toy_vocabulary()
    types = [3 if token == "Ġthe" else kind for token, kind in _typed(vocabulary)]
    tokenizer = Tokenizer.from_gguf(metadata_with(token_type=types))
    for parse_special in (True, False):
        ids = encode("on the deck", tokenizer, parse_special=parse_special)
        assert tokenizer.decode(ids, skip_special=True) == "on the deck"


def test_of_a_text_that_a_file_repeats_the_lowest_id_is_used() -> None:
    vocabulary = toy_vocabulary()
    first, second = vocabulary.id_of("Ġthe"), vocabulary.id_of(END_OF_TEXT)
    tokens, types = [*vocabulary.tokens], [*vocabulary.types]
    tokens[second], types[second] = "Ġthe", 4
    tokenizer = Tokenizer.from_gguf(metadata_with(tokens=tokens, token_type=types))
    assert encode(" the", tokenizer) == [first]
    assert tokenizer.decode(encode("Ġthe", tokenizer), skip_special=False) == "Ġthe"


@pytest.mark.parametrize("piece", ["the captain ", "\x01"])
def test_other_threads_run_while_a_long_text_is_encoded(piece: str) -> None:
    """Else one prompt of a few megabytes would stop every stream of a daemon for seconds."""
    gaps, done = [], threading.Event()

    def count() -> None:
        last = time.perf_counter()
        while not done.wait(0.001):
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    other = threading.Thread(target=count)
    text = piece * (1_000_000 // len(piece))
    started = time.perf_counter()
    other.start()
    encode(text)
    took_s = time.perf_counter() - started
    done.set()
    other.join()
    # Held by one thread, Python's lock stops the other for nearly all of the time.
    assert max(gaps, default=took_s) < took_s / 2


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidField, match="not Unicode"):
        encode("a\ud800")


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["x", " ", " ", "1234"]),
        ("smollm", ["x", "  ", "1", "2", "3", "4"]),
        ("qwen2", ["x", " ", " ", "1", "2", "3", "4"]),
        ("llama-bpe", ["x", " ", " ", "123", "4"]),
    ],
)
def test_the_named_pre_tokenizer_splits_the_text(pre: str, pieces: list[str]) -> None:
    tokens = [*toy_vocabulary().tokens]
    tokens[400:404] = ["12", "123", "1234", "ĠĠ"]
    merges = ["Ġ Ġ", "1 2", "12 3", "123 4"]
    metadata = metadata_with(pre=pre, tokens=tokens, merges=merges, add_bos_token=False)
    tokenizer = Tokenizer.from_gguf(metadata)
    assert [tokenizer.token_text(i) for i in encode("x  1234", tokenizer)] == pieces


def test_llama_takes_a_known_word_whole_without_merges() -> None:
    tokens = [*toy_vocabulary().tokens]
    tokens[400] = "Ġzebra"
    for pre, count in (("llama-bpe", 1), ("tekken", 1), ("gpt-2", 6)):
        changes = {"pre": pre, "tokens": tokens, "merges": [], "add_bos_token": False}
        tokenizer = Tokenizer.from_gguf(metadata_with(**changes))
        assert len(encode(" zebra", tokenizer)) == count


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": "bert"}, "type 'bert' is not supported"),
        ({"model": None}, "type None is not supported"),
        ({"pre": "klingon"}, "'klingon' is not supported"),
        ({"tokens": None}, "no vocabulary"),
        ({"tokens": [1, 2]}, "not a list of str"),
        ({"token_type": [1, 2]}, "512 tokens but 2 types"),
        ({"merges": ["ab"]}, "'ab', which is no pair"),
        ({"merges": ["Ġ zebra"]}, "merges do not fit the tokens: 'Ġ' and 'zebra'"),
        ({"merges": [f"{'a' * 99} b"]}, "merges do not fit"),
        ({"merges": ["Ġthe captain"]}, "merges do not fit"),
        ({"eos_token_id": 512}, "outside the vocabulary of 512"),
        ({"eos_token_id": "2"}, "not a int"),
        ({"bos_token_id": None, "add_bos_token": True}, "does not name"),
    ],
)
def test_an_unusable_tokenizer_is_refused_at_start(
    changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(ModelFileError, match=problem):
        Tokenizer.from_gguf(metadata_with(**changes))


@pytest.mark.model
def test_the_default_model_gives_the_ids_and_texts_of_transformers(
    default_model_path: Path,
) -> None:
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(default_model_path).metadata)
    document: dict[str, Any] = json.loads(REFERENCE.read_text())
    assert document["model_sha256"] == CATALOG[DEFAULT_MODEL].sha256
    for case in document["cases"]:
        ids = encode(case["text"], tokenizer, add_special=True)
        assert ids == case["ids"]
        assert tokenizer.decode(ids, skip_special=False) == case["decoded"]
        assert tokenizer.decode(ids, skip_special=True) == case["without_specials"]


@pytest.mark.model
def test_the_default_model_ends_on_both_of_its_ends(default_model_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(GGUFFile.open(default_model_path).metadata)
    assert {tokenizer.token_text(i) for i in tokenizer.eos_ids} == {IM_END, END_OF_TEXT}
