"""The tokenizer of a Hugging Face folder, through the `tokenizers` library.

Knows `tokenizer.json` as far as its tokens and their bytes need it; the library knows the rest, and
`folder.py` the other files. tokenizer_config.json has the last word on adding BOS and EOS, the
post-processor where it is silent. An id ends a generation if generation_config.json, config.json or
the tokenizer says so. Rows of the model that no token has are called `[PAD5]` and the like, as in
GGUF files that are made of such a folder, so that both have one fingerprint.

Invariant: ids are those of the library over the same file, without truncation and padding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gguf import TokenType
from tokenizers import Tokenizer as Backend

from specd.errors import ModelFileError
from specd.text import byte_level, sentence_piece
from specd.text.codec import Alphabet, Codec, Engine, encoded, library_engine
from specd.text.folder import Folder, Json
from specd.text.vocabulary import MAX_TOKENS, Vocabulary, added, marked_ends

TOKENIZER = "tokenizer.json"


def codec_from_folder(path: Path) -> Codec:
    """Read a folder's tokenizer. Raises: ModelFileError where it is malformed or not supported."""
    folder = Folder(path)
    document = folder.read(TOKENIZER)
    if not document:
        raise ModelFileError(f"{path} has no {TOKENIZER}")
    model = _checked_model(document)
    backend = _backend(path)
    in_bytes = _is_byte_level(document)
    vocabulary = _vocabulary(folder, _Tokens.of(document, model, backend, folder), backend)
    if in_bytes:
        spelled = byte_level.spelled_bytes(vocabulary)
    else:
        vocabulary = sentence_piece.with_plain_spaces(vocabulary)
        spelled = sentence_piece.spelled_bytes(vocabulary)
    check = _check(backend, vocabulary, in_bytes)

    def make_engine(parse_special: bool) -> Engine:
        return library_engine(backend if parse_special else _literal(backend, vocabulary), check)

    first = backend.encode("a", add_special_tokens=False).ids[:1]
    adds_space = not in_bytes and any(spelled[i].startswith(b" ") for i in first)
    return Codec(vocabulary, spelled, make_engine, adds_space=adds_space)


def _checked_model(document: Json) -> Json:
    model = document.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    if not isinstance(model, dict) or kind != "BPE":
        raise ModelFileError(f"the model type {kind!r} of {TOKENIZER} is not supported, only 'BPE'")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            raise ModelFileError(f"{key} in the model of {TOKENIZER} is not supported")
    if not isinstance(model.get("vocab"), dict) or not model["vocab"]:
        raise ModelFileError(f"the model of {TOKENIZER} has no vocabulary")
    if len(set(map(str, model["vocab"].values()))) < len(model["vocab"]):
        raise ModelFileError(f"two tokens of {TOKENIZER} have one id")
    return model


def _is_byte_level(document: Json) -> bool:
    """Whether tokens spell bytes; else they spell characters, with `▁` for a space."""
    steps = [*_steps(document.get("pre_tokenizer")), *_steps(document.get("normalizer"))]
    kinds = {str(step.get("type")) for step in steps}
    if "ByteLevel" in kinds:
        return True
    written = [step.get("content") for step in steps if step.get("type") == "Replace"]
    if "Metaspace" in kinds or sentence_piece.SPACE in written:
        return False
    raise ModelFileError(
        f"{TOKENIZER} is neither byte-level nor SentencePiece's: "
        f"its steps are {', '.join(sorted(kinds)) or 'none'}"
    )


def _steps(step: Any) -> Iterator[Json]:
    """A step of a tokenizer and all steps in it."""
    if isinstance(step, dict):
        yield step
        for key in ("pretokenizers", "normalizers"):
            for inner in step.get(key) or ():
                yield from _steps(inner)


def _backend(path: Path) -> Backend:
    try:
        backend = Backend.from_file(str(path / TOKENIZER))
    # The library raises plain exceptions for whatever does not fit.
    except Exception as error:
        raise ModelFileError(f"{path / TOKENIZER} is not usable: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _literal(backend: Backend, vocabulary: Vocabulary) -> Backend:
    """A copy to which the text of a control token is plain text, for its merges too."""
    document = json.loads(backend.to_str())
    control = {vocabulary.tokens[i] for i in vocabulary.control_ids}
    document["model"]["merges"] = [
        pair for pair in document["model"]["merges"] if control.isdisjoint((*pair, "".join(pair)))
    ]
    copy = Backend.from_str(json.dumps(document))
    copy.encode_special_tokens = True
    return copy


class _Tokens:
    """Texts and types by id, and ids by text. Rows without a token have a text and no way to it."""

    def __init__(self, table: Mapping[str, int], num_tokens: int) -> None:
        self.table = table
        self.texts = [f"[PAD{i}]" for i in range(num_tokens)]
        self.types = [int(TokenType.UNUSED)] * num_tokens

    @staticmethod
    def of(document: Json, model: Json, backend: Backend, folder: Folder) -> _Tokens:
        table = backend.get_vocab(with_added_tokens=True)
        size = max(max(table.values()) + 1, folder.num_rows())
        if size > MAX_TOKENS:
            raise ModelFileError(
                f"{folder.path} has a vocabulary of {size} tokens; specd takes at most {MAX_TOKENS}"
            )
        found = _Tokens(table, size)
        for text, i in table.items():
            found.texts[i], found.types[i] = text, int(TokenType.NORMAL)
        if model.get("byte_fallback"):
            found._retype(
                (i for text, i in table.items() if sentence_piece.byte_value(text) is not None),
                TokenType.BYTE,
            )
        found._retype(
            (i for text, i in table.items() if text == model.get("unk_token")), TokenType.UNKNOWN
        )
        for token in document.get("added_tokens") or ():
            found._register(token, table.get(token["content"]))
        return found

    def _retype(self, ids: Iterator[int], kind: TokenType) -> None:
        for i in ids:
            self.types[i] = int(kind)

    def _register(self, token: Json, token_id: int | None) -> None:
        if token_id is None or token["id"] != token_id:
            raise ModelFileError(
                f"{TOKENIZER} gives {token['content']!r:.80} the id {token['id']}, and its "
                f"vocabulary {token_id}"
            )
        kind = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
        self.types[token_id] = int(kind)


def _vocabulary(folder: Folder, tokens: _Tokens, backend: Backend) -> Vocabulary:
    bos_id, eos_id = (_id_of(folder, role, tokens.table) for role in ("bos_token", "eos_token"))
    ends = list(folder.ends(len(tokens.texts)))
    if eos_id is None:
        eos_id = next(iter(ends), None)
    else:
        ends.append(eos_id)
    prefix, suffix = _surroundings(backend)
    return Vocabulary(
        tokens=tuple(tokens.texts),
        types=tuple(tokens.types),
        bos_id=bos_id,
        eos_id=eos_id,
        eos_ids=frozenset(ends) | marked_ends(tokens.texts, tokens.types),
        prefix=_with(prefix, bos_id, folder.adds("bos_token"), "BOS"),
        suffix=_with(suffix, eos_id, folder.adds("eos_token"), "EOS"),
    )


def _id_of(folder: Folder, role: str, table: Mapping[str, int]) -> int | None:
    text = folder.token_name(role)
    token_id = None if text is None else table.get(text)
    if text is not None and token_id is None:
        raise ModelFileError(f"the {role} of {folder.path} is {text!r:.80}, which is no token")
    return token_id


def _surroundings(backend: Backend) -> tuple[list[int], list[int]]:
    """The ids that the post-processor puts before and behind a text."""
    plain = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(plain) + 1):
        end = start + len(plain)
        if plain and whole[start:end] == plain:
            return whole[:start], whole[end:]
    raise ModelFileError(f"what {TOKENIZER} makes of the letter a has no end or is nothing")


def _with(ids: list[int], token_id: int | None, asked: bool | None, name: str) -> tuple[int, ...]:
    """`ids` with the token where it is asked for, without it where it is not wanted."""
    if asked and token_id not in ids:
        return added(token_id, name)
    return tuple(ids) if asked is None or asked else tuple(i for i in ids if i != token_id)


def _check(backend: Backend, vocabulary: Vocabulary, in_bytes: bool) -> Callable[[str], None]:
    spelling = byte_level if in_bytes else sentence_piece
    alphabet: Alphabet = spelling.alphabet(vocabulary)
    normalizer = backend.normalizer
    if normalizer is None or alphabet.is_complete:
        return alphabet.check

    def check(text: str) -> None:
        encoded(text)
        alphabet.check(normalizer.normalize_str(text))

    return check
