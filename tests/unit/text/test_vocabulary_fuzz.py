"""Vocabularies that no model has: each is refused, or loses no character of any text."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.toy_gguf import ToyVocabulary, tokenizer_metadata, toy_vocabulary
from specd.errors import InvalidField, ModelFileError
from specd.text.detokenizer import Detokenizer
from specd.text.tokenizer import Tokenizer
from tests.support.fuzzing import fuzzed

NORMAL = 1
SIZE = 320
TOKENS = (
    *("", "a", " ", "\n", "Ġ", "Ġt", "é", "🙂", "\0", "<|im_end|>", "</s>", "ĠĠ", "İ", "ﬁ", "한"),
    *("a" * 1000, "[a-z]", "\\", ".*", "(", "\u200d", "\ud7ff", "0", "7"),
)
TEXTS = (
    *(
        "",
        "a",
        "ab  c",
        "the captain",
        "<|im_end|>",
        "🙂한국어\u0301",
        "x\0y",
        "\n\n \n",
        "a" * 300,
    ),
    *("0123456789", "</s><s>", "İﬁ", " \u00a0\u3000", "Ġt"),
)
PLACES = st.integers(0, SIZE - 1)
PRES = ("gpt-2", "smollm", "qwen2", "llama-bpe", "default")


@cache
def _sound() -> ToyVocabulary:
    return toy_vocabulary(SIZE)


@st.composite
def vocabularies(draw: st.DrawFn) -> dict[str, object]:
    """A toy's metadata with some of its tokens, types and merges replaced."""
    sound = _sound()
    tokens, types, merges = [*sound.tokens], [*sound.types], [*sound.merges]
    for place, text in draw(st.lists(st.tuples(PLACES, st.sampled_from(TOKENS)), max_size=8)):
        tokens[place] = text
    for place, kind in draw(st.lists(st.tuples(PLACES, st.integers(-1, 7)), max_size=8)):
        # A literal token that looks like the bytes of another text is found by its looks.
        types[place] = kind if tokens[place].isascii() else NORMAL
    for place in draw(st.lists(PLACES, max_size=3)):
        merges.insert(place % (len(merges) + 1), f"{tokens[place]} {draw(st.sampled_from(tokens))}")
    if draw(st.booleans()):
        # What the changes have left without a token.
        known = set(tokens)
        pairs = (merge.split(" ") for merge in merges if merge.count(" ") == 1)
        merges = [" ".join(p) for p in pairs if all(p) and {*p, "".join(p)} <= known]
    metadata = tokenizer_metadata(ToyVocabulary(sound.tokens, types, merges))
    changes: dict[str, object] = {"tokens": tokens, "pre": draw(st.sampled_from(PRES))}
    ends = draw(st.none() | st.sampled_from([0, SIZE - 1, SIZE, -1, True, "a", [1, 2], [1, "b"]]))
    if ends is not None:
        changes["eot_token_id"] = ends
    return metadata | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


@fuzzed(300)
@given(metadata=vocabularies(), parse_special=st.booleans())
def test_any_vocabulary_is_refused_or_loses_nothing(
    metadata: dict[str, object], parse_special: bool
) -> None:
    try:
        tokenizer = Tokenizer.from_gguf(metadata)
    except ModelFileError:
        return
    for text in TEXTS:
        try:
            ids = tokenizer.encode(text, parse_special=parse_special, add_special=False)
        except InvalidField:
            continue
        assert tokenizer.decode(ids, skip_special=False) == text
        detokenizer = Detokenizer(tokenizer, skip_special=False)
        assert "".join([*map(detokenizer.push, ids), detokenizer.flush()]) == text
