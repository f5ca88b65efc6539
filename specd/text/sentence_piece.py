"""SentencePiece BPE, the tokenizer kind `llama` of GGUF files.

Knows scores, byte tokens and `▁`. The neighbours whose joint piece has the highest score merge
first, the leftmost of equal ones; what is no piece in the end becomes bytes. Where the file asks
for it, a space is put before each stretch of text between literal tokens, as the readers of GGUF
files do. To such a vocabulary U+2581 in a text is a space.

The `tokenizers` library ranks pairs, not pieces, and where it may be asked is a matter of trial:
- each character of a piece is a piece, and no two pieces that merges make have one score: none of
  900,000 random texts over vocabularies made to differ did;
- but all runs of one character may share one score, as the runs of spaces of Llama 2 and Mistral
  do, if longer runs rank first: none of 1,400,000.
The other files get `merging.py`, which is slower.

Invariant: no merge makes a literal or a byte token.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gguf import TokenType
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from specd.errors import ModelFileError
from specd.text.codec import Alphabet, Codec, Engine, library_engine, register_literals
from specd.text.merging import Merger
from specd.text.vocabulary import PREFIX, Vocabulary, many, one, vocabulary_from_gguf

KIND = "llama"
SPACE = "▁"

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
# What such a file means where it does not name its tokens.
_DEFAULT_IDS = {"bos_token_id": 1, "eos_token_id": 2}
_NO_TEXT = frozenset({TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE})
_OVER_A_WORD = re.compile(f"[^{SPACE}]{SPACE}")
_WORDS = f"{SPACE}+[^{SPACE}]*|[^{SPACE}]+"
_WHOLE = "(?s).+"
# Rules that SentencePiece has and GGUF files of this kind never carry; the text would come out
# other than the model knows it.
_FOREIGN = ("precompiled_charsmap", "remove_extra_whitespaces", "treat_whitespace_as_suffix")


def byte_value(text: str) -> int | None:
    """The byte that the text of a byte token such as `<0x0A>` names, None for other texts."""
    found = _BYTE.fullmatch(text)
    return int(found[1], 16) if found else None


def spelled_bytes(vocabulary: Vocabulary) -> tuple[bytes, ...]:
    """The bytes of each token: a byte token's byte, a control token's text, else `▁` as space."""
    control = vocabulary.control_ids
    found = []
    for i, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        value = byte_value(text) if kind == TokenType.BYTE else None
        if value is not None:
            found.append(bytes((value,)))
        else:
            found.append((text if i in control else text.replace(SPACE, " ")).encode())
    return tuple(found)


def with_plain_spaces(vocabulary: Vocabulary) -> Vocabulary:
    """USER_DEFINED tokens are found in the text as it comes, so theirs has spaces and no `▁`."""
    kinds = zip(vocabulary.tokens, vocabulary.types, strict=True)
    tokens = (
        text.replace(SPACE, " ") if kind == TokenType.USER_DEFINED else text for text, kind in kinds
    )
    return replace(vocabulary, tokens=tuple(tokens))


def alphabet(vocabulary: Vocabulary) -> Alphabet:
    """What the byte tokens, the single characters and the spaces of a vocabulary can spell."""
    kinds = list(zip(vocabulary.tokens, vocabulary.types, strict=True))
    values = [byte_value(text) for text, kind in kinds if kind == TokenType.BYTE]
    single = {text for text, kind in kinds if len(text) == 1 and kind not in _NO_TEXT}
    return Alphabet((value for value in values if value is not None), single | {" "})


@dataclass(frozen=True, slots=True)
class _Pieces:
    """What text is made of. ids, scores: by text. byte_ids: by value, maybe not all of them."""

    ids: dict[str, int]
    scores: dict[str, float]
    byte_ids: dict[int, int]

    def words(self) -> str:
        """A pattern that finds the parts of a text that no merge reaches over."""
        return _WHOLE if any(map(_OVER_A_WORD.search, self.ids)) else _WORDS

    def merges(self) -> list[tuple[str, str]]:
        """Each pair that makes a piece, the one of the highest score first, then the longest."""
        ids, scores = self.ids, self.scores
        return [
            (piece[:cut], piece[cut:])
            for piece in sorted(ids, key=lambda piece: (-scores[piece], -len(piece)))
            for cut in range(1, len(piece))
            if piece[:cut] in ids and piece[cut:] in ids
        ]

    def rank_clearly(self, merges: list[tuple[str, str]]) -> bool:
        """Whether ranks of pairs say the same as scores of pieces; the module says when."""
        made = {left + right for left, right in merges}
        count = Counter(map(self.scores.__getitem__, made))
        tied = set().union(*(piece for piece in made if count[self.scores[piece]] > 1))
        runs = {self.scores[piece] for piece in made if set(piece) == tied}
        several = (piece for piece in self.ids if len(piece) > 1)
        return (not tied or (len(tied) == 1 and len(runs) == 1)) and set().union(
            *several
        ) <= self.ids.keys()


def codec_from_gguf(metadata: Mapping[str, object]) -> Codec:
    """Read a tokenizer of this kind. Raises: ModelFileError where it is malformed or not known."""
    _refuse_unknown(metadata)
    vocabulary = with_plain_spaces(
        vocabulary_from_gguf(metadata, add_bos_default=True, default_ids=_DEFAULT_IDS)
    )
    pieces = _pieces(vocabulary, _scores(metadata, len(vocabulary.tokens)))
    asked = one(metadata, "add_space_prefix", bool)
    adds_space = asked is None or asked
    merges = pieces.merges()
    check = alphabet(vocabulary).check
    clear = pieces.rank_clearly(merges)

    def make_engine(parse_special: bool) -> Engine:
        table = vocabulary.table(with_control=parse_special)
        if clear:
            backend = _backend(table, merges, pieces.words(), adds_space)
            register_literals(backend, vocabulary, table)
            return library_engine(backend, check)
        literals = {text: i for text, i in table.items() if text and i in vocabulary.literal_ids}
        merger = Merger(pieces.ids, pieces.scores, pieces.byte_ids, re.compile(pieces.words()))
        return merger.engine(literals, SPACE if adds_space else "", check)

    return Codec(vocabulary, spelled_bytes(vocabulary), make_engine, adds_space=adds_space)


def _refuse_unknown(metadata: Mapping[str, object]) -> None:
    pre = one(metadata, "pre", str)
    if pre not in {None, "", "default"}:
        raise ModelFileError(f"the pre-tokenizer {pre!r} is not one of the tokenizer type {KIND!r}")
    for name in _FOREIGN:
        if metadata.get(PREFIX + name):
            raise ModelFileError(f"{PREFIX}{name} is not supported with the type {KIND!r}")


def _scores(metadata: Mapping[str, object], num_tokens: int) -> tuple[float, ...]:
    scores = many(metadata, "scores", float)
    if len(scores) != num_tokens:
        raise ModelFileError(f"the model file has {num_tokens} tokens but {len(scores)} scores")
    if not all(map(math.isfinite, scores)):
        raise ModelFileError(f"{PREFIX}scores has a value that is no number")
    return scores


def _pieces(vocabulary: Vocabulary, scores: tuple[float, ...]) -> _Pieces:
    pieces = _Pieces({}, {}, {})
    for i, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True)):
        if kind == TokenType.BYTE:
            value = byte_value(text)
            if value is None:
                raise ModelFileError(f"the byte token {i} is {text!r:.80} and names no byte")
            pieces.byte_ids.setdefault(value, i)
        elif text and i not in vocabulary.literal_ids and text not in pieces.ids:
            pieces.ids[text] = i
            pieces.scores[text] = scores[i]
    if SPACE not in pieces.ids:
        raise ModelFileError(f"the vocabulary has no token for a space ({SPACE})")
    return pieces


def _normalizer(adds_space: bool) -> normalizers.Normalizer:
    marked = normalizers.Replace(" ", SPACE)
    return normalizers.Sequence([normalizers.Prepend(SPACE), marked]) if adds_space else marked


def _backend(
    table: dict[str, int], merges: list[tuple[str, str]], words: str, adds_space: bool
) -> Backend:
    backend = Backend(models.BPE(table, merges, byte_fallback=True))
    backend.normalizer = _normalizer(adds_space)
    if words != _WHOLE:
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(words), "isolated")
    return backend
