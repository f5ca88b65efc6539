"""Byte-pair encoding as its definitions read, slow and obvious, to compare real tokenizers with.

Knows the published patterns that named pre-tokenizers stand for, and the two rules of merging: by
the rank of a pair, and by the score of what a pair makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache

import regex

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LATER = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_AFTER_SIGNS, _OR_SLASHES = r"+[\r\n]*", r"+[\r\n/]*"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

# Each pattern in turn cuts what the ones before it left.
PATTERNS = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "qwen2": (rf"{_CONTRACTION}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_LATER}",),
    "llama-bpe": (rf"{_CONTRACTION}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_LATER}",),
    "tekken": (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
        + rf"|\p{{N}}{_LATER.replace(_AFTER_SIGNS, _OR_SLASHES)}",
    ),
}
# These take a word that is a token whole.
WHOLE_WORDS = frozenset({"llama-bpe", "tekken"})


def words(text: str, pre: str) -> list[str]:
    """How the pre-tokenizer `pre` cuts a text."""
    found = [text] if text else []
    for pattern in PATTERNS[pre]:
        found = [part for word in found for part in _isolated(pattern, word)]
    return found


def _isolated(pattern: str, text: str) -> Iterator[str]:
    """The matches of a pattern, and what lies between them."""
    end = 0
    for match in regex.finditer(pattern, text):
        yield text[end : match.start()]
        yield match[0]
        end = match.end()
    yield text[end:]


@cache
def byte_characters() -> dict[int, str]:
    """The character that byte-level BPE writes for a byte."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(256) if value not in visible]
    return {v: chr(v) for v in visible} | {v: chr(256 + i) for i, v in enumerate(hidden)}


def merge(parts: list[str], priority: Callable[[str, str], float | None]) -> list[str]:
    """Join the neighbours of the highest priority, the leftmost first, until none has any."""
    while True:
        best, place = None, 0
        for i in range(len(parts) - 1):
            found = priority(parts[i], parts[i + 1])
            if found is not None and (best is None or found > best):
                best, place = found, i
        if best is None:
            return parts
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


def byte_level(text: str, pre: str, ids: Mapping[str, int], ranks: Mapping[str, int]) -> list[int]:
    """The ids of a text. ranks: the number of a merge, which is written "left right"."""
    found: list[int] = []
    for word in filter(None, words(text, pre)):
        spelled = "".join(byte_characters()[byte] for byte in word.encode())
        if pre in WHOLE_WORDS and spelled in ids:
            found.append(ids[spelled])
            continue
        parts = merge(list(spelled), lambda a, b: _negative(ranks.get(f"{a} {b}")))
        found += [ids[part] for part in parts]
    return found


def _negative(rank: int | None) -> int | None:
    return None if rank is None else -rank


def by_scores(text: str, scores: Mapping[str, float]) -> list[str]:
    """The pieces of a text, merged by the score of what two make."""
    return merge(list(text), lambda a, b: scores.get(a + b))
