"""Toy tokenizers for the tests of this folder."""

from __future__ import annotations

from functools import cache

from benchmarks.toy_gguf import tokenizer_metadata, toy_vocabulary
from specd.text.tokenizer import Tokenizer

USER_DEFINED = ("<think>", "</think>", "<tool_call>")


@cache
def toy_tokenizer() -> Tokenizer:
    """512 tokens: bytes, merges, three user-defined tokens, three specials."""
    return Tokenizer.from_gguf(tokenizer_metadata(toy_vocabulary(user_defined=USER_DEFINED)))
