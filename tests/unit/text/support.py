"""Toy tokenizers for the tests of this folder."""

from __future__ import annotations

from functools import cache

from specd.text.tokenizer import Tokenizer
from tests.support.toy_gguf import tokenizer_metadata, toy_vocabulary

USER_DEFINED = ("<think>", "</think>", "<tool_call>")


@cache
def toy_tokenizer() -> Tokenizer:
    """512 tokens: bytes, merges, three user-defined tokens, three specials."""
    return Tokenizer.from_gguf(tokenizer_metadata(toy_vocabulary(user_defined=USER_DEFINED)))
