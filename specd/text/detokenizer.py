"""Turns a growing row of token ids into text, piece by piece.

Knows token bytes and UTF-8; nothing of stop strings or requests. It begins empty: what stood in
the prompt never completes, or corrupts, the first character of an answer.

Invariant: the pieces joined, `flush` last, are the joined `token_bytes` of the ids as text, however
the ids were grouped; no piece holds half a character, and each is sound Unicode. A space that the
first token begins with stays: an answer continues a text.
"""

from __future__ import annotations

import codecs

from specd.text.tokenizer import Tokenizer

_DECODER = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """One per generated sequence."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = _DECODER(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; "" while a character is incomplete."""
        if self._skip_special and self._tokenizer.is_special(token_id):
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """What the ids end with: U+FFFD for an incomplete character. Begins anew after it."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
