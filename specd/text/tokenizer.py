"""Turns text into token ids and token ids into bytes, whatever kind of tokenizer a model has.

Knows what the rest of the daemon asks of a tokenizer; the kinds are modules of their own
(`byte_level.py`, `sentence_piece.py`, `hugging_face.py`), and nobody outside can tell them apart.
Text of special tokens such as `<|im_end|>` becomes their single id where the caller says
`parse_special`: chat templates need it, and users of completion APIs expect it of a text prompt.
USER_DEFINED tokens are single ids in either case.

Some kinds encode a text as if a space stood before it. `decode` reads ids as a whole text and
leaves that space out. The answer to a prompt is no whole text but its continuation: its bytes,
`token_bytes` joined, keep the space, as "The cat" goes on with " sat".

Invariant: nothing is lost either way. `decode` gives the text that was encoded, and a text that the
vocabulary cannot express is an error (the default model has no token for U+0004, say). What a
model's own files do to a text before they split it is done: a normalizer composes characters, `▁`
in a text is a space to those that write spaces so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Protocol

from specd.errors import ModelFileError
from specd.text import byte_level, hugging_face, sentence_piece
from specd.text.codec import Codec, Engine
from specd.text.vocabulary import one

_GGUF_KINDS = {
    byte_level.KIND: byte_level.codec_from_gguf,
    sentence_piece.KIND: sentence_piece.codec_from_gguf,
}


class Source(Protocol):
    """A model on disk: a GGUF file with its metadata, or a Hugging Face folder."""

    @property
    def path(self) -> Path: ...

    @property
    def metadata(self) -> Mapping[str, object]: ...


class Tokenizer:
    """Immutable once made; may be shared between threads."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._vocabulary = codec.vocabulary
        self._bytes = codec.token_bytes
        self._parsing = codec.make_engine(True)

    @staticmethod
    def from_source(source: Source) -> Tokenizer:
        """The tokenizer of an opened model. Raises: as `from_gguf` and `from_folder`."""
        if source.path.is_dir():
            return Tokenizer.from_folder(source.path)
        return Tokenizer.from_gguf(source.metadata)

    @staticmethod
    def from_gguf(metadata: Mapping[str, object]) -> Tokenizer:
        """Raises: ModelFileError where the file's tokenizer is malformed or not supported."""
        kind = one(metadata, "model", str)
        if kind not in _GGUF_KINDS:
            raise ModelFileError(
                f"the tokenizer type {kind!r} is not supported; specd reads byte-level BPE "
                f"({byte_level.KIND!r}) and SentencePiece BPE ({sentence_piece.KIND!r})"
            )
        return Tokenizer(_GGUF_KINDS[kind](metadata))

    @staticmethod
    def from_folder(folder: Path) -> Tokenizer:
        """The tokenizer of a Hugging Face folder.

        Raises: ModelFileError where its files are missing, malformed or not supported.
        """
        return Tokenizer(hugging_face.codec_from_folder(folder))

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
        ids = (self._parsing if parse_special else self._literal)(text)
        if not add_special:
            return ids
        return [*self._vocabulary.prefix, *ids, *self._vocabulary.suffix]

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of a token, for a control token its literal text.

        Empty for ids beyond the vocabulary, which a model with padded rows can produce.
        """
        assert token_id >= 0
        return self._bytes[token_id] if token_id < self.vocab_size else b""

    def is_special(self, token_id: int) -> bool:
        """True for tokens that `skip_special` leaves out of the text."""
        return token_id in self._vocabulary.control_ids

    def decode(self, ids: Iterable[int], *, skip_special: bool) -> str:
        """The whole text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        kept = (self.token_bytes(i) for i in ids if not (skip_special and self.is_special(i)))
        data = b"".join(kept)
        if self.adds_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    @property
    def adds_space(self) -> bool:
        """Whether a text is encoded as if a space stood before it."""
        return self._codec.adds_space

    @cached_property
    def longest_token_bytes(self) -> int:
        """Bytes of the longest token; no text has fewer tokens than its bytes divided by this."""
        return max(map(len, self._bytes))

    def token_text(self, token_id: int | None) -> str:
        """The text of one token, empty for None: what templates call `bos_token`."""
        return "" if token_id is None else self.token_bytes(token_id).decode("utf-8", "replace")

    @cached_property
    def _literal(self) -> Engine:
        return self._codec.make_engine(False)
