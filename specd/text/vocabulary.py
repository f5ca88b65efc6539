"""The tokenizer part of a GGUF file's metadata, checked and typed.

Knows the `tokenizer.ggml.*` keys and which tokens end a generation; nothing of how text is split.

Invariant: every id here is below the number of tokens, every token has a type, and every merge
makes a token of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from gguf import TokenType

from specd.errors import ModelFileError

_PREFIX = "tokenizer.ggml."

# A generation ends on any id that one of these keys names (a number or a list) ...
_EOS_KEYS = ("eos_token_id", "eos_token_ids", "eot_token_id", "eom_token_id")
# ... and on each of these texts that is a registered token: a file often names one end of several,
# and a model that is carried past its own end of turn goes on to talk to itself. A text that is an
# ordinary token, as "</s>" may be, ends nothing.
_END_MARKERS = frozenset({
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>",
    "<|return|>", "<|call|>", "<end_of_turn>", "</s>",
})  # fmt: skip

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a file says of its tokenizer. `add_bos` and `add_eos` None: the file does not say."""

    pre: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[tuple[str, str], ...]
    bos_id: int | None
    eos_id: int | None
    eos_ids: frozenset[int]
    add_bos: bool | None
    add_eos: bool | None

    @staticmethod
    def from_gguf(metadata: Mapping[str, object]) -> Vocabulary:
        """Raises: ModelFileError where a part is missing, malformed or not supported."""
        kind = _one(metadata, "model", str)
        if kind != "gpt2":
            raise ModelFileError(
                f"the tokenizer type {kind!r} is not supported; specd reads byte-level BPE ('gpt2')"
            )
        tokens = _many(metadata, "tokens", str)
        if not tokens:
            raise ModelFileError(f"the model file has no vocabulary ({_PREFIX}tokens)")
        types = _many(metadata, "token_type", int) or (int(TokenType.NORMAL),) * len(tokens)
        if len(types) != len(tokens):
            raise ModelFileError(f"the model file has {len(tokens)} tokens but {len(types)} types")
        bos_ids = _ids(metadata, "bos_token_id", len(tokens))
        named = [token_id for key in _EOS_KEYS for token_id in _ids(metadata, key, len(tokens))]
        return Vocabulary(
            pre=_one(metadata, "pre", str) or "default",
            tokens=tokens,
            types=types,
            merges=_merges(metadata, tokens),
            bos_id=bos_ids[0] if bos_ids else None,
            eos_id=named[0] if named else None,
            eos_ids=frozenset(named).union(_marked_ends(tokens, types)),
            add_bos=_one(metadata, "add_bos_token", bool),
            add_eos=_one(metadata, "add_eos_token", bool),
        )

    def is_control(self, token_id: int) -> bool:
        """True for tokens that carry structure and no text of an answer."""
        return self.types[token_id] in {TokenType.CONTROL, TokenType.UNKNOWN}

    def is_user_defined(self, token_id: int) -> bool:
        """True for tokens that are single ids wherever their text occurs, such as `<think>`."""
        return self.types[token_id] == TokenType.USER_DEFINED


def _one(metadata: Mapping[str, object], name: str, kind: type[T]) -> T | None:
    value = metadata.get(_PREFIX + name)
    if value is not None and type(value) is not kind:
        raise ModelFileError(f"{_PREFIX}{name} is {value!r:.80}, not a {kind.__name__}")
    return value


def _many(metadata: Mapping[str, object], name: str, kind: type[T]) -> tuple[T, ...]:
    values = metadata.get(_PREFIX + name, [])
    if not isinstance(values, list) or any(type(value) is not kind for value in values):
        raise ModelFileError(f"{_PREFIX}{name} is not a list of {kind.__name__}")
    return tuple(values)


def _ids(metadata: Mapping[str, object], name: str, num_tokens: int) -> tuple[int, ...]:
    listed = isinstance(metadata.get(_PREFIX + name), list)
    single = None if listed else _one(metadata, name, int)
    ids = _many(metadata, name, int) if listed else () if single is None else (single,)
    for token_id in ids:
        if not 0 <= token_id < num_tokens:
            raise ModelFileError(
                f"{_PREFIX}{name} is {token_id}, outside the vocabulary of {num_tokens} tokens"
            )
    return ids


def _merges(metadata: Mapping[str, object], tokens: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    known = frozenset(tokens)
    merges = tuple(_pair(merge) for merge in _many(metadata, "merges", str))
    for left, right in merges:
        # The library of the field panics where a merge makes what is no token.
        if left not in known or right not in known or left + right not in known:
            raise ModelFileError(
                f"{_PREFIX}merges do not fit the tokens: {left!r:.80} and {right!r:.80} make none"
            )
    return merges


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right or " " in right:
        raise ModelFileError(f"{_PREFIX}merges has {merge!r:.80}, which is no pair of tokens")
    return left, right


def _marked_ends(tokens: tuple[str, ...], types: tuple[int, ...]) -> list[int]:
    registered = {TokenType.CONTROL, TokenType.USER_DEFINED}
    return [
        token_id
        for token_id, token in enumerate(tokens)
        if token in _END_MARKERS and types[token_id] in registered
    ]
