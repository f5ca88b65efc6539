"""Byte-level BPE, the tokenizer kind `gpt2` of GGUF files.

Knows the named pre-tokenizers in `_RECIPES`, merges, and the characters that stand for bytes.
Readers of GGUF files take Unicode as it comes: nothing is normalized.

Invariant: every merge makes a token of two, and no merge makes a literal token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import cast

from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from specd.errors import ModelFileError
from specd.text.codec import Alphabet, Codec, Engine, library_engine, register_literals
from specd.text.vocabulary import PREFIX, Vocabulary, many, one, vocabulary_from_gguf

KIND = "gpt2"

_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Llama 3 differs in one thing: it takes digits by threes.
_LLAMA3_SPLIT = _QWEN2_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
# A word begins anew at a capital letter behind a small one.
_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN_SPLIT = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALL}+|[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALL}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_Step = pre_tokenizers.PreTokenizer


def _split(pattern: str) -> _Step:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _to_bytes(*, gpt2_words: bool) -> _Step:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=gpt2_words)


def _gpt2() -> list[_Step]:
    return [_to_bytes(gpt2_words=True)]


def _single_digits() -> list[_Step]:
    return [pre_tokenizers.Digits(individual_digits=True), _to_bytes(gpt2_words=True)]


def _unnamed() -> list[_Step]:
    # What readers of the field do for a file that does not know better. Bytes come last: digits
    # and punctuation are found by what they are as characters.
    words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
    first = [_split(r"[\p{P}$+<=>^~|]+"), _split(words), _split(r"\p{N}+"), _split("[0-9]{3}")]
    return [*first, _to_bytes(gpt2_words=False)]


def _by(pattern: str) -> Callable[[], list[_Step]]:
    return lambda: [_split(pattern), _to_bytes(gpt2_words=False)]


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What a `tokenizer.ggml.pre` stands for.

    whole_words: a word that is in the vocabulary needs no merges. add_bos: what holds where the
    file does not say.
    """

    steps: Callable[[], list[_Step]]
    whole_words: bool = False
    add_bos: bool = False


_LLAMA3 = _Recipe(_by(_LLAMA3_SPLIT), whole_words=True, add_bos=True)
_SINGLE_DIGITS = _Recipe(_single_digits)
_QWEN2 = _Recipe(_by(_QWEN2_SPLIT))
_RECIPES = {
    "default": _Recipe(_unnamed),
    "gpt-2": _Recipe(_gpt2),
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "tekken": _Recipe(_by(_TEKKEN_SPLIT), whole_words=True, add_bos=True),
}


def byte_of_character() -> dict[str, int]:
    """Byte-level BPE writes a byte as itself where that is visible, else as U+0100 and up."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [value for value in range(256) if value not in visible]
    table = {chr(value): value for value in visible}
    return table | {chr(256 + place): value for place, value in enumerate(hidden)}


_BYTE_OF_CHARACTER = byte_of_character()
# Characters of 8 bits that stand for no byte become one that has more, so that they are noticed.
_TO_LATIN_1 = {value: 0xFFFF for value in range(256) if chr(value) not in _BYTE_OF_CHARACTER} | {
    ord(character): value for character, value in _BYTE_OF_CHARACTER.items()
}


def spelled_bytes(vocabulary: Vocabulary) -> tuple[bytes, ...]:
    """The bytes of each token. A literal token, or one that spells no bytes, is its own text."""
    found = []
    for text in vocabulary.tokens:
        try:
            found.append(text.translate(_TO_LATIN_1).encode("latin-1"))
        except UnicodeEncodeError:
            found.append(text.encode())
    for i in vocabulary.literal_ids:
        found[i] = vocabulary.tokens[i].encode()
    return tuple(found)


def alphabet(vocabulary: Vocabulary) -> Alphabet:
    """What the ordinary tokens of a vocabulary can spell."""
    ordinary = frozenset(vocabulary.ordinary())
    return Alphabet(byte for text, byte in _BYTE_OF_CHARACTER.items() if text in ordinary)


def codec_from_gguf(metadata: Mapping[str, object]) -> Codec:
    """Read a tokenizer of this kind. Raises: ModelFileError where it is malformed or not known."""
    pre = one(metadata, "pre", str) or "default"
    recipe = _RECIPES.get(pre)
    if recipe is None:
        raise ModelFileError(
            f"the pre-tokenizer {pre!r} is not supported; specd knows {', '.join(sorted(_RECIPES))}"
        )
    vocabulary = vocabulary_from_gguf(metadata, add_bos_default=recipe.add_bos)
    merges = _merges(metadata, vocabulary)
    check = alphabet(vocabulary).check

    def make_engine(parse_special: bool) -> Engine:
        table = vocabulary.table(with_control=parse_special)
        backend = Backend(models.BPE(table, merges, ignore_merges=recipe.whole_words))
        backend.pre_tokenizer = pre_tokenizers.Sequence(recipe.steps())
        register_literals(backend, vocabulary, table)
        return library_engine(backend, check)

    return Codec(vocabulary, spelled_bytes(vocabulary), make_engine)


def _merges(metadata: Mapping[str, object], vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """The pairs that merge. Their checks are bulk operations: there are 10^5 of them."""
    merges = many(metadata, "merges", str)
    pairs = [tuple(merge.split(" ")) for merge in merges]
    known = frozenset(vocabulary.tokens)
    parts, made = set(chain.from_iterable(pairs)), set(map("".join, pairs))
    if not (set(map(len, pairs)) <= {2} and parts | made <= known and "" not in parts):
        raise ModelFileError(next(filter(None, (_fault(pair, known) for pair in pairs))))
    # Only its text makes a control token, and only where it is parsed.
    literal = frozenset(map(vocabulary.tokens.__getitem__, vocabulary.literal_ids))
    unmade = literal.intersection(parts | made).difference(vocabulary.ordinary())
    made_freely = (p for p in pairs if unmade.isdisjoint((*p, "".join(p))))
    return cast("list[tuple[str, str]]", list(made_freely) if unmade else pairs)


def _fault(pair: tuple[str, ...], known: frozenset[str]) -> str:
    """What is wrong with a merge, if anything."""
    if len(pair) != 2 or not all(pair):
        return f"{PREFIX}merges has {' '.join(pair)!r:.80}, which is no pair of tokens"
    # The library of the field panics where a merge makes what is no token.
    if known.issuperset((*pair, "".join(pair))):
        return ""
    left, right = pair
    return f"{PREFIX}merges do not fit the tokens: {left!r:.80} and {right!r:.80} make none"
