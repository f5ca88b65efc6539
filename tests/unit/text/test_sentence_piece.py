"""SentencePiece tokenizers of GGUF files give the ids that SentencePiece gives."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.errors import InvalidField, ModelFileError
from specd.text.detokenizer import Detokenizer
from specd.text.tokenizer import Tokenizer
from tests.support.fuzzing import fuzzed
from tests.support.slow_bpe import by_scores
from tests.support.toy_vocabularies import (
    CORPUS,
    LETTERS,
    SPACES,
    USER_DEFINED,
    sentence_piece,
    sentence_piece_metadata,
)

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no prefix": {"add_dummy_prefix": False},
    "pieces of several words": {"split_by_whitespace": False, "vocab_size": 2200},
    "single digits": {"split_digits": True, "split_by_unicode_script": False},
    "runs of spaces": {
        "add_dummy_prefix": False,
        "user_defined_symbols": [*USER_DEFINED, *SPACES],
    },
}
NAMES = st.sampled_from(sorted(MODELS))


@cache
def model(name: str) -> Any:
    return sentence_piece(**MODELS[name])


@cache
def metadata(name: str) -> dict[str, Any]:
    options = MODELS[name]
    return sentence_piece_metadata(
        model(name),
        add_space_prefix=options.get("add_dummy_prefix", True),
        user_defined=options.get("user_defined_symbols", ()),
    )


@cache
def tokenizer(name: str) -> Tokenizer:
    return Tokenizer.from_gguf(metadata(name))


def changed(name: str = "plain", **changes: Any) -> dict[str, Any]:
    """Metadata with `tokenizer.ggml.*` keys changed; None removes one."""
    found = metadata(name) | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in found.items() if value is not None}


def part(name: str, key: str) -> list[Any]:
    values = metadata(name)[f"tokenizer.ggml.{key}"]
    return [*values]


def encode(text: str, used: Tokenizer, **options: bool) -> list[int]:
    return used.encode(text, **({"parse_special": False, "add_special": False} | options))


def slow_ids(text: str, changes: dict[str, Any]) -> list[int]:
    """The ids of a text with a space before it, by the definition."""
    tokens, kinds = changes["tokenizer.ggml.tokens"], changes["tokenizer.ggml.token_type"]
    numbered = list(enumerate(tokens))
    ids = {token: i for i, token in reversed(numbered) if kinds[i] == 1}
    bytes_of = {int(token[3:5], 16): i for i, token in numbered if kinds[i] == 6}
    scores = {token: changes["tokenizer.ggml.scores"][i] for token, i in ids.items()}
    found: list[int] = []
    for piece in by_scores("▁" + text.replace(" ", "▁"), scores) if text else []:
        found += [ids[piece]] if piece in ids else [bytes_of[b] for b in piece.encode()]
    return found


@pytest.mark.parametrize("name", MODELS)
def test_many_scripts_get_the_ids_of_sentence_piece(name: str) -> None:
    for text in (*CORPUS, *("\n".join(CORPUS[i:]) for i in range(len(CORPUS)))):
        assert encode(text, tokenizer(name)) == model(name).encode(text)


@fuzzed(400)
@given(text=st.text(LETTERS, max_size=60), name=NAMES)
def test_random_text_gets_the_ids_of_sentence_piece(text: str, name: str) -> None:
    assert encode(text, tokenizer(name)) == model(name).encode(text)


@fuzzed(200)
@given(text=st.text(), name=NAMES)
def test_every_text_comes_back_whole(text: str, name: str) -> None:
    for parse_special in (True, False):
        ids = encode(text, tokenizer(name), parse_special=parse_special)
        # Between two special tokens a text gets a space of its own.
        if not any(map(tokenizer(name).is_special, ids)):
            decoded = tokenizer(name).decode(ids, skip_special=False)
            assert decoded == text.replace("▁", " ")


@pytest.mark.parametrize("step", [2, 50, 10_000])
def test_of_equal_scores_the_leftmost_merges_first(step: int) -> None:
    for text in CORPUS:
        assert encode(text, tied(step)) == slow_ids(text, tied_metadata(step))


@fuzzed(60)
@given(words=st.lists(st.sampled_from(" ".join(CORPUS).split()), max_size=6))
def test_of_equal_scores_the_leftmost_merges_first_in_random_text(words: list[str]) -> None:
    text = " ".join(words)
    assert encode(text, tied(50)) == slow_ids(text, tied_metadata(50))


def test_the_longest_of_literal_tokens_is_found_whatever_the_scores() -> None:
    scores = [0.0] * len(part("runs of spaces", "scores"))
    used = Tokenizer.from_gguf(changed("runs of spaces", scores=scores))
    ids = encode("a     b", used)
    assert [used.token_text(i) for i in ids] == ["a", " " * 5, "b"]


@cache
def tied_metadata(step: int) -> dict[str, Any]:
    """Scores so coarse that `step` pieces share one."""
    return changed(scores=[float(score // step) for score in part("plain", "scores")])


@cache
def tied(step: int) -> Tokenizer:
    return Tokenizer.from_gguf(tied_metadata(step))


@cache
def with_equal_runs() -> dict[str, Any]:
    """Runs of spaces that share a score below all others, as Llama 2 has them."""
    scores = part("plain", "scores")
    for i, token in enumerate(part("plain", "tokens")):
        if len(token) > 1 and set(token) == {"▁"}:
            scores[i] = -1e6
    return changed(scores=scores)


@cache
def equal_runs() -> Tokenizer:
    return Tokenizer.from_gguf(with_equal_runs())


@fuzzed(100)
@given(
    runs=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from(["", "x", "\n", "the"])), max_size=4
    )
)
def test_runs_of_spaces_may_share_a_score(runs: list[tuple[int, str]]) -> None:
    text = "".join(" " * count + word for count, word in runs)
    assert encode(text, equal_runs()) == slow_ids(text, with_equal_runs())


@cache
def with_letterless_piece() -> dict[str, Any]:
    """A piece of which no character is a piece, and no other token."""
    tokens, kinds = part("plain", "tokens"), part("plain", "token_type")
    place = max(i for i, kind in enumerate(kinds) if kind == 1 and len(tokens[i]) > 2)
    tokens[place] = "₿₿"
    return changed(tokens=tokens)


@pytest.mark.parametrize("text", ["₿", "₿₿", "a₿₿₿b", "₿₿₿₿ ₿", "", " "])
def test_a_piece_is_found_though_its_characters_are_none(text: str) -> None:
    found = encode(text, Tokenizer.from_gguf(with_letterless_piece()))
    assert found == slow_ids(text, with_letterless_piece())


def test_an_unclear_vocabulary_gives_the_same_ids_for_other_texts() -> None:
    used = Tokenizer.from_gguf(with_letterless_piece())
    for text in CORPUS:
        assert encode(text, used) == slow_ids(text, with_letterless_piece())


@pytest.mark.parametrize("text", ["a" * 200_000, " " * 200_000, "ab c" * 50_000, "é漢" * 100_000])
def test_a_long_text_takes_time_by_its_length(text: str) -> None:
    # Time by its square would be minutes here.
    for used in (tokenizer("plain"), tied(50)):
        assert used.decode(encode(text, used), skip_special=False) == text


def test_byte_tokens_are_their_bytes_and_their_text_is_text() -> None:
    used = tokenizer("plain")
    ids = encode("a\n🤖", used)
    assert [used.token_bytes(i) for i in ids[1:]] == [b"\n", b"\xf0", b"\x9f", b"\xa4", b"\x96"]
    literal = encode("<0x0A>", used, parse_special=True)
    assert used.decode(literal, skip_special=False) == "<0x0A>"
    assert part("plain", "tokens").index("<0x0A>") not in literal


def test_control_text_is_an_id_only_where_it_is_parsed() -> None:
    used = tokenizer("plain")
    parsed = encode("xa</s>b", used, parse_special=True)
    assert list(map(used.is_special, parsed)) == [False, False, True, False, False]
    assert used.decode(parsed, skip_special=True) == "xa b"
    plain = encode("a</s>b", used)
    assert not any(map(used.is_special, plain))
    assert used.decode(plain, skip_special=True) == "a</s>b"


@pytest.mark.parametrize("text", [*USER_DEFINED, "   "])
@pytest.mark.parametrize("parse_special", [True, False])
def test_i13_user_defined_tokens_are_single_ids(text: str, parse_special: bool) -> None:
    used = tokenizer("runs of spaces")
    ids = encode(f"a{text}b", used, parse_special=parse_special)
    assert [used.token_text(i) for i in ids] == ["a", text, "b"]
    assert used.decode(ids, skip_special=True) == f"a{text}b"


def test_the_unknown_token_is_special() -> None:
    used = tokenizer("plain")
    [unknown] = [i for i, kind in enumerate(part("plain", "token_type")) if kind == 2]
    assert used.is_special(unknown)
    assert used.token_bytes(unknown) == b"<unk>"


def test_bos_is_added_and_names_its_usual_place_where_the_file_is_silent() -> None:
    used = Tokenizer.from_gguf(changed(bos_token_id=None, eos_token_id=None))
    assert encode("a", used, add_special=True)[0] == used.bos_id == 1
    assert used.eos_ids == {2}
    asked = Tokenizer.from_gguf(changed(add_bos_token=False, add_eos_token=True))
    assert encode("a", asked, add_special=True) == [*encode("a", asked), 2]


def test_a_whole_text_loses_the_space_that_was_put_before_it() -> None:
    used = tokenizer("plain")
    for text in ("The ferry", " The ferry", "", " ", "\n"):
        ids = encode(text, used, add_special=True)
        assert used.decode(ids, skip_special=True) == text


def test_an_answer_keeps_the_space_that_it_begins_with() -> None:
    used = tokenizer("plain")
    prompt, answer = encode("The captain", used), encode("counts twice", used)
    detokenizer = Detokenizer(used, skip_special=True)
    shown = "".join([*map(detokenizer.push, answer), detokenizer.flush()])
    assert shown == " counts twice"
    assert used.decode([*prompt, *answer], skip_special=True) == "The captain" + shown


@fuzzed(200)
@given(ids=st.lists(st.integers(0, 1600), max_size=40), skip_special=st.booleans())
def test_an_answer_streams_as_its_bytes_and_in_whole_characters(
    ids: list[int], skip_special: bool
) -> None:
    used = tokenizer("plain")
    detokenizer = Detokenizer(used, skip_special=skip_special)
    pieces = [*map(detokenizer.push, ids), detokenizer.flush()]
    kept = (i for i in ids if not (skip_special and used.is_special(i)))
    assert "".join(pieces) == b"".join(map(used.token_bytes, kept)).decode("utf-8", "replace")
    assert all(piece.encode() or not piece for piece in pieces)


def test_without_byte_tokens_an_unknown_character_is_refused_and_named() -> None:
    small = sentence_piece(byte_fallback=False, vocab_size=900)
    used = Tokenizer.from_gguf(sentence_piece_metadata(small))
    with pytest.raises(InvalidField, match=r"cannot express U\+1F916 \(character 2"):
        encode("a 🤖", used)
    assert encode("The ferry", used) == small.encode("The ferry")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"scores": None}, "1500 tokens but 0 scores"),
        ({"scores": [0.0] * 1499}, "1500 tokens but 1499 scores"),
        ({"scores": [1] * 1500}, "scores is not a list of float"),
        ({"scores": [float("nan")] * 1500}, "scores has a value that is no number"),
        ({"tokens": None}, "no vocabulary"),
        ({"tokens": ["x"] * 1500}, "the byte token 3 is 'x' and names no byte"),
        ({"tokens": ["x"] * 1500, "token_type": [1] * 1500}, "no token for a space"),
        ({"token_type": [9] * 1500}, "token_type has 9"),
        ({"pre": "qwen2"}, "'qwen2' is not one of the tokenizer type 'llama'"),
        ({"precompiled_charsmap": [1]}, "precompiled_charsmap is not supported"),
        ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces is not supported"),
        ({"eos_token_id": 1500}, "outside the vocabulary of 1500"),
        ({"bos_token_id": None, "token_type": [1] * 1500}, "adds a BOS token"),
    ],
)
def test_an_unusable_vocabulary_is_refused_at_start(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelFileError, match=problem):
        Tokenizer.from_gguf(changed(**changes))
