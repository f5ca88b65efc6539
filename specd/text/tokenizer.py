"""Turns text into token ids and token ids into bytes, with the vocabulary of a model file.

Knows byte-level BPE with the pre-tokenizers in `_RECIPES`; nothing of requests or streams.
Text of special tokens such as `<|im_end|>` becomes their single id where the caller says
`parse_special`: chat templates need it, and users of completion APIs expect it of a text prompt.
USER_DEFINED tokens are single ids in either case.

Invariant: nothing is lost either way. Joined `token_bytes` are the exact text, and a text that
the vocabulary cannot express is an error (the default model has no token for U+0004, say).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from tokenizers import AddedToken, Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from specd.errors import InvalidField, ModelFileError
from specd.text.vocabulary import Vocabulary

# A batch of one text has no use for the library's threads, and with them it would write a warning
# to stderr whenever somebody's drafter starts a process.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Llama 3 differs in one thing: it takes digits by threes.
_LLAMA3_SPLIT = _QWEN2_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def _byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


def _split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What a `tokenizer.ggml.pre` stands for.

    whole_words: a word that is in the vocabulary needs no merges. add_bos: what holds where the
    file does not say. None of them normalizes: readers of GGUF files take Unicode as it comes.
    """

    split: Callable[[], pre_tokenizers.PreTokenizer]
    whole_words: bool = False
    add_bos: bool = False


_RECIPES = {
    "default": _Recipe(_byte_level),
    "gpt-2": _Recipe(_byte_level),
    "smollm": _Recipe(_single_digits),
    "qwen2": _Recipe(lambda: _split_by(_QWEN2_SPLIT)),
    "llama-bpe": _Recipe(lambda: _split_by(_LLAMA3_SPLIT), whole_words=True, add_bos=True),
}


def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE writes a byte as itself where that is visible, else as U+0100 and up."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [value for value in range(256) if value not in visible]
    table = {chr(value): value for value in visible}
    return table | {chr(256 + place): value for place, value in enumerate(hidden)}


_BYTE_OF_CHARACTER = _byte_of_character()
# Bytes that no UTF-8 text contains.
_NEVER_IN_TEXT = frozenset({0xC0, 0xC1, *range(0xF5, 0x100)})


class Tokenizer:
    """Immutable once made; may be shared between threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises: ModelFileError where the vocabulary cannot work."""
        recipe = _RECIPES.get(vocabulary.pre)
        if recipe is None:
            raise ModelFileError(
                f"the pre-tokenizer {vocabulary.pre!r} is not supported; "
                f"specd knows {', '.join(sorted(_RECIPES))}"
            )
        self._vocabulary = vocabulary
        self._recipe = recipe
        self._add_bos = recipe.add_bos if vocabulary.add_bos is None else vocabulary.add_bos
        self._add_eos = bool(vocabulary.add_eos)
        if (self._add_bos and self.bos_id is None) or (self._add_eos and self.eos_id is None):
            raise ModelFileError(
                "the tokenizer adds a BOS or EOS token that its file does not name"
            )
        self._bytes = tuple(map(self._exact_bytes, range(self.vocab_size)))
        self._plain = frozenset(
            text for i, text in enumerate(vocabulary.tokens) if not self._is_literal(i)
        )
        missing = {byte for text, byte in _BYTE_OF_CHARACTER.items() if text not in self._plain}
        self._inexpressible = bytes(missing - _NEVER_IN_TEXT)
        self._parsing = self._backend(parse_special=True)

    @staticmethod
    def from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
        """Raises: ModelFileError where the file's tokenizer is malformed or not supported."""
        return Tokenizer(Vocabulary.from_gguf(metadata))

    @property
    def vocab_size(self) -> int:
        """The number of tokens. A model may have more rows; those ids have no text."""
        return len(self._vocabulary.tokens)

    @property
    def bos_id(self) -> int | None:
        return self._vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        """The one that templates call `eos_token`, and that the file may ask to append."""
        return self._vocabulary.eos_id

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every id that ends a generation; `text/vocabulary.py` says how they are found."""
        return self._vocabulary.eos_ids

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over the token texts in id order: equal ones mean the same ids everywhere."""
        digest = hashlib.sha256()
        for token in self._vocabulary.tokens:
            data = token.encode()
            digest.update(len(data).to_bytes(4, "little") + data)
        return digest.hexdigest()

    def encode(self, text: str, *, parse_special: bool, add_special: bool) -> list[int]:
        """The ids of `text`; `add_special` adds BOS and EOS where the file asks for them.

        Raises: InvalidField where the vocabulary has no tokens for a character.
        """
        self._check_expressible(text)
        backend = self._parsing if parse_special else self._literal
        # For a text of 4 MB this form holds the interpreter lock for 30 ms, `encode` for 2 s.
        (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        if add_special and self._add_bos and self.bos_id is not None:
            ids.insert(0, self.bos_id)
        if add_special and self._add_eos and self.eos_id is not None:
            ids.append(self.eos_id)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of a token, for a control token its literal text.

        Empty for ids beyond the vocabulary, which a model with padded rows can produce.
        """
        assert token_id >= 0
        return self._bytes[token_id] if token_id < self.vocab_size else b""

    def is_special(self, token_id: int) -> bool:
        """True for tokens that `skip_special` leaves out of the text."""
        return token_id < self.vocab_size and self._vocabulary.is_control(token_id)

    def decode(self, ids: Iterable[int], *, skip_special: bool) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        kept = (self.token_bytes(i) for i in ids if not (skip_special and self.is_special(i)))
        return b"".join(kept).decode("utf-8", "replace")

    @cached_property
    def longest_token_bytes(self) -> int:
        """Bytes of the longest token; no text has fewer tokens than its bytes divided by this."""
        return max(map(len, self._bytes))

    def token_text(self, token_id: int | None) -> str:
        """The text of one token, empty for None: what templates call `bos_token`."""
        return "" if token_id is None else self.token_bytes(token_id).decode("utf-8", "replace")

    @cached_property
    def _literal(self) -> Backend:
        return self._backend(parse_special=False)

    def _exact_bytes(self, token_id: int) -> bytes:
        text = self._vocabulary.tokens[token_id]
        if self._is_literal(token_id) or not all(map(_BYTE_OF_CHARACTER.__contains__, text)):
            return text.encode()
        return bytes(map(_BYTE_OF_CHARACTER.__getitem__, text))

    def _is_literal(self, token_id: int) -> bool:
        """True for tokens whose text stands for itself, not for the bytes of its characters."""
        return self.is_special(token_id) or self._vocabulary.is_user_defined(token_id)

    def _backend(self, *, parse_special: bool) -> Backend:
        vocabulary = self._vocabulary
        # Backwards, so that the lowest id wins where a file repeats a text.
        table = {
            vocabulary.tokens[i]: i
            for i in reversed(range(self.vocab_size))
            if parse_special or not self.is_special(i)
        }
        # No merge makes a control token: only its text itself does, and only where it is parsed.
        merges = [(a, b) for a, b in vocabulary.merges if {a, b, a + b} <= self._plain]
        backend = Backend(models.BPE(table, merges, ignore_merges=self._recipe.whole_words))
        backend.pre_tokenizer = self._recipe.split()
        backend.add_tokens([
            AddedToken(text, special=self.is_special(i), normalized=False)
            for text, i in table.items()
            if text and self._is_literal(i)
        ])
        return backend

    def _check_expressible(self, text: str) -> None:
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise InvalidField("input", f"the text is not Unicode: {error.reason}") from error
        if len(data.translate(None, self._inexpressible)) == len(data):
            return
        bad = set(self._inexpressible)
        place, character = next(
            (place, c) for place, c in enumerate(text) if not bad.isdisjoint(c.encode())
        )
        raise InvalidField(
            "input",
            f"the model's vocabulary cannot express U+{ord(character):04X} "
            f"(character {place} of the text)",
        )
