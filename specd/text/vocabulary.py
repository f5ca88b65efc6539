"""The tokens of a model, checked and typed, whatever the file they come from.

Knows which tokens end a generation, and the keys that every kind of GGUF tokenizer shares; nothing
of how text is split or spelled.

Invariant: every id here is below the number of tokens, and every token has a type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import TypeVar

from gguf import TokenType

from specd.errors import ModelFileError

PREFIX = "tokenizer.ggml."
# 16 times the largest vocabulary known.
MAX_TOKENS = 1 << 22

# A generation ends on any id that one of these keys names (a number or a list) ...
_EOS_KEYS = ("eos_token_id", "eos_token_ids", "eot_token_id", "eom_token_id")
# ... and on each of these texts that is a registered token: a file often names one end of several,
# and a model that is carried past its own end of turn goes on to talk to itself. A text that is an
# ordinary token, as "</s>" may be, ends nothing.
_END_MARKERS = frozenset({
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>",
    "<|return|>", "<|call|>", "<end_of_turn>", "</s>",
})  # fmt: skip
_CONTROL = frozenset({int(TokenType.CONTROL), int(TokenType.UNKNOWN)})
_REGISTERED = frozenset({int(TokenType.CONTROL), int(TokenType.USER_DEFINED)})
_TYPES = frozenset(map(int, TokenType))

T = TypeVar("T")


@dataclass(frozen=True)
class Vocabulary:
    """What a file says of its tokens. eos_ids: every id that ends a generation, `eos_id` too.

    prefix, suffix: ids that the tokenizer puts around a text of its own accord.
    """

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    bos_id: int | None
    eos_id: int | None
    eos_ids: frozenset[int]
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Tokens that carry structure and no text of an answer."""
        return frozenset(i for i, kind in enumerate(self.types) if kind in _CONTROL)

    @cached_property
    def literal_ids(self) -> frozenset[int]:
        """Tokens found by their text alone: control ones, and USER_DEFINED such as `<think>`."""
        user_defined = int(TokenType.USER_DEFINED)
        return self.control_ids | {i for i, kind in enumerate(self.types) if kind == user_defined}

    def ordinary(self) -> Iterator[str]:
        """The texts of the tokens that are not literal."""
        wanted = bytearray(b"\1") * len(self.tokens)
        for i in self.literal_ids:
            wanted[i] = 0
        return compress(self.tokens, wanted)

    def table(self, *, with_control: bool) -> dict[str, int]:
        """Ids by text. The lowest id has it where a file repeats a text."""
        left_out = frozenset[int]() if with_control else self.control_ids
        backwards = zip(reversed(self.tokens), reversed(range(len(self.tokens))), strict=True)
        return {text: i for text, i in backwards if i not in left_out}


def vocabulary_from_gguf(
    metadata: Mapping[str, object],
    *,
    add_bos_default: bool,
    default_ids: Mapping[str, int] | None = None,
) -> Vocabulary:
    """Read what every kind of GGUF tokenizer has.

    `add_bos_default` holds where the file does not say, and so do `default_ids` (by key) that are
    control tokens.
    Raises: ModelFileError where a part is missing or malformed.
    """
    tokens = many(metadata, "tokens", str)
    if not tokens:
        raise ModelFileError(f"the model file has no vocabulary ({PREFIX}tokens)")
    types = many(metadata, "token_type", int) or (int(TokenType.NORMAL),) * len(tokens)
    if len(types) != len(tokens):
        raise ModelFileError(f"the model file has {len(tokens)} tokens but {len(types)} types")
    if unknown := set(types) - _TYPES:
        raise ModelFileError(
            f"{PREFIX}token_type has {min(unknown)}, which is none of {min(_TYPES)} to "
            f"{max(_TYPES)}"
        )
    ids = {
        key: _ids(metadata, key, len(tokens), _default(default_ids or {}, key, types))
        for key in ("bos_token_id", *_EOS_KEYS)
    }
    named = [token_id for key in _EOS_KEYS for token_id in ids[key]]
    bos_id, eos_id = next(iter(ids["bos_token_id"]), None), next(iter(named), None)
    add_bos = one(metadata, "add_bos_token", bool)
    add_bos = add_bos_default if add_bos is None else add_bos
    return Vocabulary(
        tokens=tokens,
        types=types,
        bos_id=bos_id,
        eos_id=eos_id,
        eos_ids=frozenset(named) | marked_ends(tokens, types),
        prefix=added(bos_id, "BOS") if add_bos else (),
        suffix=added(eos_id, "EOS") if one(metadata, "add_eos_token", bool) else (),
    )


def added(token_id: int | None, name: str) -> tuple[int]:
    """The id, of a token that the tokenizer adds. Raises: ModelFileError where there is none."""
    if token_id is None:
        raise ModelFileError(f"the tokenizer adds a {name} token that its file does not name")
    return (token_id,)


def one(metadata: Mapping[str, object], name: str, kind: type[T]) -> T | None:
    """The single value of a key, None where the file lacks it.

    Raises: ModelFileError where it is of another type.
    """
    value = metadata.get(PREFIX + name)
    if value is not None and type(value) is not kind:
        raise ModelFileError(f"{PREFIX}{name} is {value!r:.80}, not a {kind.__name__}")
    return value


def many(metadata: Mapping[str, object], name: str, kind: type[T]) -> tuple[T, ...]:
    """The list of a key, empty where the file lacks it.

    Raises: ModelFileError where it is none, or has elements of another type.
    """
    values = metadata.get(PREFIX + name, [])
    if not isinstance(values, list) or not set(map(type, values)) <= {kind}:
        raise ModelFileError(f"{PREFIX}{name} is not a list of {kind.__name__}")
    return tuple(values)


def marked_ends(tokens: Sequence[str], types: Sequence[int]) -> frozenset[int]:
    """Ids whose text is known to end a turn, where they are registered tokens."""
    return frozenset(
        token_id
        for token_id, token in enumerate(tokens)
        if token in _END_MARKERS and types[token_id] in _REGISTERED
    )


def checked_ids(ids: Iterable[int], num_tokens: int, name: str) -> tuple[int, ...]:
    """The same ids. Raises: ModelFileError where one is outside of the vocabulary."""
    ids = tuple(ids)
    for token_id in ids:
        if not 0 <= token_id < num_tokens:
            raise ModelFileError(
                f"{name} is {token_id}, outside the vocabulary of {num_tokens} tokens"
            )
    return ids


def _default(default_ids: Mapping[str, int], key: str, types: Sequence[int]) -> int | None:
    token_id = default_ids.get(key)
    usable = token_id is not None and token_id < len(types) and types[token_id] in _CONTROL
    return token_id if usable else None


def _ids(
    metadata: Mapping[str, object], name: str, num_tokens: int, default: int | None
) -> tuple[int, ...]:
    if isinstance(metadata.get(PREFIX + name), list):
        found = many(metadata, name, int)
    else:
        single = one(metadata, name, int)
        single = default if single is None else single
        found = () if single is None else (single,)
    return checked_ids(found, num_tokens, PREFIX + name)
