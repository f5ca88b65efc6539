"""The tokenizers of real model files give the ids that their published definitions give."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specd.errors import InvalidField
from specd.model.gguf_file import GGUFFile
from specd.model.pull import pull
from specd.text.tokenizer import Tokenizer
from tests.support.slow_bpe import byte_level
from tests.support.toy_vocabularies import CORPUS, LETTERS

# By model: the published pre-tokenizer, and a few ends of generations.
MODELS = (
    pytest.param("smollm2-135m", "smollm", id="smollm2", marks=pytest.mark.model),
    pytest.param("qwen2.5-coder-0.5b", "qwen2", id="qwen2", marks=pytest.mark.large),
)


class Definition:
    """The ids of a text by the tables of a model file."""

    def __init__(self, metadata: Mapping[str, object], pre: str) -> None:
        tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
        merges = metadata["tokenizer.ggml.merges"]
        assert isinstance(tokens, list) and isinstance(types, list) and isinstance(merges, list)
        self.pre = pre
        self.ids = {token: i for i, token in enumerate(tokens) if types[i] == 1}
        self.ranks = {merge: rank for rank, merge in enumerate(merges)}

    def encode(self, text: str) -> list[int] | None:
        """None where a character has no token."""
        try:
            return byte_level(text, self.pre, self.ids, self.ranks)
        except KeyError:
            return None


def encode(text: str, tokenizer: Tokenizer) -> list[int] | None:
    try:
        return tokenizer.encode(text, parse_special=False, add_special=False)
    except InvalidField:
        return None


def opened(name: str) -> Mapping[str, object]:
    path: Path = pull(name).path
    return GGUFFile.open(path).metadata


@pytest.mark.parametrize(("name", "pre"), MODELS)
def test_a_real_file_gives_the_ids_of_its_definition(name: str, pre: str) -> None:
    metadata = opened(name)
    definition, tokenizer = Definition(metadata, pre), Tokenizer.from_gguf(metadata)
    texts = [*CORPUS, *(a + b for a in CORPUS[:6] for b in CORPUS)]
    assert sum(encode(text, tokenizer) is None for text in CORPUS) <= 1
    for text in texts:
        assert encode(text, tokenizer) == definition.encode(text)

    @settings(max_examples=300, derandomize=True, deadline=None)
    @given(st.text(LETTERS, max_size=50))
    def random_texts_too(text: str) -> None:
        assert encode(text, tokenizer) == definition.encode(text)

    random_texts_too()


@pytest.mark.large
def test_a_vocabulary_of_150_000_tokens_is_ready_soon() -> None:
    metadata = opened("qwen2.5-coder-0.5b")
    started = time.process_time()
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokenizer.encode("a", parse_special=True, add_special=False)
    # Measured: 0.45 to 0.5 s.
    assert time.process_time() - started < 2
