"""What makes one kind of tokenizer, as values that `Tokenizer` puts together.

Knows the `tokenizers` library as far as all kinds use it; nothing of files, or of how a kind splits
text. Byte-level BPE, SentencePiece BPE and Hugging Face folders have a module each that makes a
`Codec`.

Invariant: an engine releases the interpreter lock while it works on a long text, or yields it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from specd.errors import InvalidField
from specd.text.vocabulary import Vocabulary

# A batch of one text has no use for the library's threads, and with them it would write a warning
# to stderr whenever somebody's drafter starts a process.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# Text to ids, nothing added. Raises: InvalidField where the vocabulary cannot express the text.
Engine = Callable[[str], list[int]]

# Bytes that no UTF-8 text contains.
_NEVER_IN_TEXT = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})


@dataclass(frozen=True, slots=True)
class Codec:
    """How one model turns text into ids and back.

    token_bytes: by id. make_engine: takes whether the text of control tokens becomes their ids.
    adds_space: a text is encoded as if a space stood before it.
    """

    vocabulary: Vocabulary
    token_bytes: tuple[bytes, ...]
    make_engine: Callable[[bool], Engine]
    adds_space: bool = False


class Alphabet:
    """What a vocabulary can spell: any text of `known_bytes`, and the single `characters`."""

    def __init__(self, known_bytes: Iterable[int], characters: Iterable[str] = ()) -> None:
        missing = frozenset(range(256)) - frozenset(known_bytes) - _NEVER_IN_TEXT
        self._missing = bytes(sorted(missing))
        self._characters = frozenset(characters)

    @property
    def is_complete(self) -> bool:
        """Whether it spells every text."""
        return not self._missing

    def check(self, text: str) -> None:
        """Raises: InvalidField, which names the first character that has no token."""
        data = encoded(text)
        if len(data.translate(None, self._missing)) == len(data):
            return
        missing = frozenset(self._missing)
        strange = {c for c in set(text) - self._characters if not missing.isdisjoint(c.encode())}
        if strange:
            place, character = next((i, c) for i, c in enumerate(text) if c in strange)
            raise InvalidField(
                "input",
                f"the model's vocabulary cannot express U+{ord(character):04X} "
                f"(character {place} of the text)",
            )


def encoded(text: str) -> bytes:
    """The text as UTF-8. Raises: InvalidField where it has half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidField("input", f"the text is not Unicode: {error.reason}") from error


def library_engine(backend: Backend, check: Callable[[str], None]) -> Engine:
    """An engine of the `tokenizers` library; `check` raises for a text that it cannot express."""

    def encode(text: str) -> list[int]:
        check(text)
        # For a text of 4 MB this form holds the interpreter lock for 30 ms, `encode` for 2 s.
        (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    return encode


def register_literals(backend: Backend, vocabulary: Vocabulary, table: dict[str, int]) -> None:
    """Make each literal token of `table` one id wherever its text occurs."""
    control = vocabulary.control_ids
    backend.add_tokens([
        AddedToken(text, special=table[text] in control, normalized=False)
        for text in map(vocabulary.tokens.__getitem__, sorted(vocabulary.literal_ids))
        if text and table.get(text) in vocabulary.literal_ids
    ])
