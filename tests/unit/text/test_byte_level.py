"""Byte-level tokenizers of GGUF files give the ids that their definitions give."""

from __future__ import annotations

import re
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.errors import ModelFileError
from specd.text.tokenizer import Tokenizer
from tests.support.fuzzing import fuzzed
from tests.support.slow_bpe import PATTERNS, byte_level
from tests.support.toy_vocabularies import CORPUS, LETTERS, byte_level_metadata

PRES = tuple(PATTERNS)
ALIASES = {
    "starcoder": "smollm",
    "refact": "smollm",
    "deepseek-r1-qwen": "qwen2",
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
}


@cache
def tokenizer(pre: str) -> Tokenizer:
    return Tokenizer.from_gguf(byte_level_metadata(pre))


@cache
def tables(pre: str) -> tuple[dict[str, int], dict[str, int]]:
    """Ids of the ordinary tokens, and ranks of the merges."""
    metadata = byte_level_metadata(pre)
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = metadata["tokenizer.ggml.merges"]
    assert isinstance(tokens, list) and isinstance(types, list) and isinstance(merges, list)
    ids = {token: i for i, token in enumerate(tokens) if types[i] == 1}
    return ids, {merge: rank for rank, merge in enumerate(merges)}


def expected(text: str, pre: str) -> list[int]:
    return byte_level(text, pre, *tables(pre))


def encode(text: str, pre: str) -> list[int]:
    return tokenizer(pre).encode(text, parse_special=False, add_special=False)


# User-defined tokens are found before the text is split, so they are for other tests.
PLAIN = tuple(re.sub("\n{3,}", "\n\n", text.replace("think", "wait")) for text in CORPUS)
RANDOM = st.text(LETTERS, max_size=40).filter(lambda text: "\n\n\n" not in text)


@pytest.mark.parametrize("pre", PRES)
def test_every_pre_tokenizer_splits_many_scripts_as_it_is_defined(pre: str) -> None:
    for text in PLAIN:
        assert encode(text, pre) == expected(text, pre)


@fuzzed(400)
@given(text=RANDOM, pre=st.sampled_from(PRES))
def test_random_text_gets_the_ids_of_the_definition(text: str, pre: str) -> None:
    assert encode(text, pre) == expected(text, pre)


@pytest.mark.parametrize(("alias", "pre"), ALIASES.items())
def test_another_name_of_a_pre_tokenizer_means_the_same(alias: str, pre: str) -> None:
    other = Tokenizer.from_gguf(byte_level_metadata(pre) | {"tokenizer.ggml.pre": alias})
    for text in CORPUS:
        ids = other.encode(text, parse_special=True, add_special=True)
        assert ids == tokenizer(pre).encode(text, parse_special=True, add_special=True)


def test_the_pre_tokenizers_differ_where_it_matters() -> None:
    """Else the comparisons above could not tell one from another."""
    ids = {tuple(i for text in PLAIN for i in encode(text, pre)) for pre in PRES}
    assert len(ids) == len(PRES)


@pytest.mark.parametrize("pre", PRES)
def test_texts_come_back_whole(pre: str) -> None:
    for text in CORPUS:
        for parse_special in (True, False):
            ids = tokenizer(pre).encode(text, parse_special=parse_special, add_special=False)
            assert tokenizer(pre).decode(ids, skip_special=False) == text


@pytest.mark.parametrize("text", ["<think>", "</think>", "\n\n\n"])
@pytest.mark.parametrize("parse_special", [True, False])
def test_i13_user_defined_tokens_are_single_ids(text: str, parse_special: bool) -> None:
    for pre in PRES:
        ids = tokenizer(pre).encode(f"a{text} b", parse_special=parse_special, add_special=False)
        assert [tokenizer(pre).token_text(i) for i in ids].count(text) == 1


@pytest.mark.parametrize(("pre", "adds"), [("llama-bpe", 1), ("tekken", 1), ("qwen2", 0)])
def test_a_bos_is_added_where_the_pre_tokenizer_implies_it(pre: str, adds: int) -> None:
    ids = tokenizer(pre).encode("a", parse_special=False, add_special=True)
    assert ids.count(tokenizer(pre).bos_id or 0) == adds


@pytest.mark.parametrize("kind", [0, 7, -1])
def test_a_type_that_is_none_is_refused(kind: int) -> None:
    metadata = byte_level_metadata("gpt-2")
    types = metadata["tokenizer.ggml.token_type"]
    assert isinstance(types, list)
    changed = metadata | {"tokenizer.ggml.token_type": [*types[:-1], kind]}
    with pytest.raises(ModelFileError, match=f"token_type has {kind}, which is none of 1 to 6"):
        Tokenizer.from_gguf(changed)
