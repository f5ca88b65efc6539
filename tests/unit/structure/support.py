"""Structures over toy vocabularies, and sequences in them without an engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import numpy as np
from llguidance import LLMatcher

from specd.engine.params import StructureParams
from specd.engine.step_types import Words
from specd.structure.bridge import TokenizerBridge
from specd.structure.compiling import compiled, fill
from specd.structure.matching import SequenceStructure
from specd.text.tokenizer import Tokenizer
from tests.support.requests import toy_tokenizer
from tests.support.toy_vocabularies import sentence_piece, sentence_piece_metadata

# More rows of logits than tokens, and no multiple of 32.
NUM_ROWS = 519
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "blue 🙂"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "left": {"$ref": "#/$defs/node"},
                "right": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
# Behind "b" comes a number of which the library makes too much; nobody who says "a" hears of it.
TOO_COMPLEX = """start: "a" /[a-z]+/ | "b" multiple
multiple: %json {"type": "integer", "multipleOf": 99991, "minimum": 0, "maximum": 1000000000000000}
"""
Kind = Literal["json_schema", "regex", "lark", "choice"]


def schema(value: object) -> StructureParams:
    return StructureParams("json_schema", (json.dumps(value, ensure_ascii=False),))


def structure(kind: Kind, *values: str) -> StructureParams:
    return StructureParams(kind, values)


GRAMMARS = {
    "person": schema(PERSON),
    "tree": schema(TREE),
    "any object": schema({"type": "object", "x-guidance": {"whitespace_flexible": True}}),
    "regex": structure("regex", "([a-c]+[0-9]{2,4}-?)+é*(foo|foobar|fo+)?"),
    "choice": structure("choice", "apple", "apple pie", "apples", 'b"q\n\\x', "日本🙂"),
    "sum": structure(
        "lark",
        'start: e\ne: e "+" t | t\nt: t "*" f | f\nf: "(" e ")" | /[0-9]+/\n%ignore / {0,3}/',
    ),
    "counted": structure("lark", 'start: word "." word\nword[max_tokens=3]: /[a-z ]+/'),
    "lazy": structure("lark", 'start: a* "END"\na[lazy]: /[a-z ]+;/'),
    "token ids": structure("lark", 'start: "x" <[300]> ("y" | <[40-60]>)+ <|im_start|>?'),
}


@cache
def byte_level() -> TokenizerBridge:
    return TokenizerBridge(toy_tokenizer(), NUM_ROWS)


@cache
def sentence_piece_tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(sentence_piece_metadata(sentence_piece()))


@cache
def sentence_piece_bridge() -> TokenizerBridge:
    tokenizer = sentence_piece_tokenizer()
    return TokenizerBridge(tokenizer, tokenizer.vocab_size)


def ids_of(text: str) -> list[int]:
    """The toy's ids of a text."""
    return toy_tokenizer().encode(text, parse_special=False, add_special=False)


def bytes_of(text: str) -> list[int]:
    """The toy's ids of a text, byte by byte."""
    table = {toy_tokenizer().token_bytes(token): token for token in range(256)}
    return [table[bytes([value])] for value in text.encode()]


def allowed(mask: Words, num_rows: int = NUM_ROWS) -> set[int]:
    """The ids of a mask; asserts that no bit lies behind the last row."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not bits[num_rows:].any()
    return set(np.flatnonzero(bits).tolist())


def first_mask(
    params: StructureParams, text: str = "", bridge: TokenizerBridge | None = None
) -> Any:
    """What may follow `text`, by a fresh matcher."""
    bridge = bridge or byte_level()
    matcher = compiled(params, bridge)
    assert matcher.consume_tokens(bridge.encode(text)), matcher.get_error()
    mask = np.zeros(bridge.num_words, np.uint32)
    assert fill(matcher, mask) is None, matcher.get_error()
    return allowed(mask, bridge.vocab_size)


def fits(params: StructureParams, text: str, bridge: TokenizerBridge | None = None) -> bool:
    """Whether an answer may be `text` and end there."""
    bridge = bridge or byte_level()
    matcher = compiled(params, bridge)
    ids = bridge.encode(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@contextmanager
def sequences(
    bridge: TokenizerBridge | None = None,
    *,
    made: list[LLMatcher] | None = None,
) -> Iterator[Callable[[StructureParams], SequenceStructure]]:
    """Makes the structures of sequences; their masks come from a thread that ends.

    `made`: gets every matcher that is made for them.
    """
    own = bridge or byte_level()
    with ThreadPoolExecutor(1) as threads:

        def make(params: StructureParams) -> SequenceStructure:
            def make_matcher() -> LLMatcher:
                matcher = compiled(params, own)
                if made is not None:
                    made.append(matcher)
                return matcher

            return SequenceStructure(
                own, make_matcher(), make_matcher, threads=threads, live={}, on_close=lambda: None
            )

        yield make


def mask_behind(sequence: SequenceStructure, draft: Sequence[int] = ()) -> Words:
    """The last mask of a draft."""
    masks: Words = sequence.masks(tuple(draft)).result()
    return masks[-1]
