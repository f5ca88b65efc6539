"""Our tokenizer as llguidance sees it: the bytes of every id, which ids are special, which end.

Made once per model, before calls are admitted: making it holds the interpreter lock, for 0.1 s at
49,152 tokens (17 MB) and 0.3 s at 151,936 (45 MB). Where a structure leaves one text open, the
library asks for that text's tokens and allows the first alone, so that the model reads what it
would have written itself; `encode` answers.
Invariant: an id stands for the bytes that it adds to an answer's text. Ids that end an answer, and
control tokens, stand for no text, whatever their file calls them; nor do rows without a token.
"""

from __future__ import annotations

from collections.abc import Iterable

from llguidance import LLTokenizer, TokenizerWrapper

from specd.errors import InvalidField
from specd.text.tokenizer import Tokenizer

# Forced text is tokenised anew at each position of it, and only its first token counts, so of a
# long text a part will do. The library looks back from its end by one longest token.
_LONGEST_TOKENS = 8
# What stands before a continuation where a tokenizer puts a space before a text.
_BEFORE = "\n"


class TokenizerBridge:
    """Immutable once made; may be shared between threads.

    library: what matchers are made with. vocab_size: rows of logits. num_words: 32-bit words of a
    mask. end_ids: ids that end an answer.
    special_ids: those, and control tokens.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """The tokenizer has to have an end token, and `vocab_size` counts the rows of logits."""
        assert tokenizer.eos_ids
        self.vocab_size = vocab_size
        self.num_words = -(-vocab_size // 32)
        self.end_ids = tokenizer.eos_ids
        self.special_ids = self.end_ids.union(filter(tokenizer.is_special, range(vocab_size)))
        self._tokenizer = tokenizer
        self._longest = _LONGEST_TOKENS * tokenizer.longest_token_bytes
        self._adds_space = tokenizer.adds_space
        told = _Told(self, tokenizer)
        self.library = LLTokenizer(told, eos_token=sorted(self.end_ids))
        told.tokens = ()  # the library has its own
        self.encode("a")  # the first text takes tens of milliseconds

    def encode(self, text: str) -> list[int]:
        """The ids of the beginning of a text that continues another, never of half a token.

        They spell a prefix of `text`, all of it where it is not very long.
        """
        text = text[: self._longest]
        try:
            ids = self._continuing(text)
        except InvalidField:
            ids = []
        # What a normalizer changes, or cannot express, is spelled by the longest tokens that fit.
        return ids if self.spelled(ids) == text.encode() else self.library.greedy_tokenize(text)

    def spelled(self, ids: Iterable[int]) -> bytes:
        """The bytes of all ids."""
        return b"".join(map(self._tokenizer.token_bytes, ids))

    def check(self, text: str) -> None:
        """Raises InvalidField where the vocabulary has no tokens for a character of `text`."""
        self._tokenizer.encode(text, parse_special=False, add_special=False)

    def _continuing(self, text: str) -> list[int]:
        if not self._adds_space:
            return self._tokenizer.encode(text, parse_special=False, add_special=False)
        ids = self._tokenizer.encode(_BEFORE + text, parse_special=False, add_special=False)
        spelled, before = b"", f" {_BEFORE}".encode()
        for place, token in enumerate(ids):
            if spelled == before:
                return ids[place:]
            spelled += self._tokenizer.token_bytes(token)
        return []


class _Told(TokenizerWrapper):
    """What the library asks for."""

    def __init__(self, bridge: TokenizerBridge, tokenizer: Tokenizer) -> None:
        ids = range(bridge.vocab_size)
        self.is_tokenizer_wrapper = True
        self.tokens = tuple(map(tokenizer.token_bytes, ids))
        self.special_token_ids = sorted(bridge.special_ids)
        self.eos_token_id = min(bridge.end_ids)
        self.bos_token_id = None
        self._bridge = bridge

    def __call__(self, text: str) -> list[int]:
        return self._bridge.encode(text)
