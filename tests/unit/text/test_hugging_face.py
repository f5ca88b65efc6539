"""Tokenizers of Hugging Face folders: the library's own ids, and what the other files say."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers import Tokenizer as Backend

from specd.errors import InvalidField, ModelFileError
from specd.text.tokenizer import Tokenizer
from tests.support.fuzzing import fuzzed
from tests.support.toy_vocabularies import (
    CONTROL,
    CORPUS,
    LETTERS,
    SPACES,
    USER_DEFINED,
    byte_level,
    byte_level_metadata,
    folder,
    sentence_piece,
    sentence_piece_metadata,
)

START, STOP = CONTROL


def spaced(*steps: Any, split: Any = None, **options: Any) -> Backend:
    """As Llama 2 and Gemma have it: a SentencePiece model with its merges written out."""
    learned = sentence_piece(**options)
    user_defined = options.get("user_defined_symbols", ())
    ids = range(learned.vocab_size())
    table = {learned.id_to_piece(i): i for i in ids}
    ordinary = [
        piece
        for piece, i in sorted(table.items(), key=lambda item: -learned.get_score(item[1]))
        if not (learned.is_control(i) or learned.is_unknown(i) or learned.is_byte(i))
        and piece not in user_defined
    ]
    known = frozenset(ordinary)
    merges = [
        (piece[:cut], piece[cut:])
        for piece in ordinary
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]
    made = Backend(models.BPE(table, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if steps:
        made.normalizer = normalizers.Sequence(list(steps))
    if split is not None:
        made.pre_tokenizer = split
    specials = [learned.id_to_piece(i) for i in ids if i < 3]
    made.add_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    made.add_tokens([AddedToken(text, normalized=False) for text in user_defined])
    return made


PREPEND, MARK = normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")


@cache
def backend(name: str) -> Backend:
    if name == "byte-level":
        return byte_level()
    if name == "prefixed":
        return spaced(PREPEND, MARK)
    if name == "metaspace":
        return spaced(split=pre_tokenizers.Metaspace(prepend_scheme="first", split=False))
    gemma = {"add_dummy_prefix": False, "user_defined_symbols": [*USER_DEFINED, *SPACES]}
    return spaced(MARK, **gemma)


NAMES = ("byte-level", "prefixed", "metaspace", "unprefixed")
CONFIG = {"bos_token": START, "eos_token": {"content": STOP, "special": True}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("folders")
    return {name: folder(root / name, backend(name)) for name in NAMES}


@pytest.fixture(scope="module")
def tokenizers(folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {name: Tokenizer.from_folder(path) for name, path in folders.items()}


def encode(text: str, used: Tokenizer, **options: bool) -> list[int]:
    return used.encode(text, **({"parse_special": True, "add_special": False} | options))


def library(folders: dict[str, Path], name: str, *, literal: bool = False) -> Backend:
    made = Backend.from_file(str(folders[name] / "tokenizer.json"))
    made.encode_special_tokens = literal
    return made


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("literal", [False, True])
def test_many_scripts_get_the_ids_of_the_library(
    name: str, literal: bool, folders: dict[str, Path], tokenizers: dict[str, Tokenizer]
) -> None:
    raw = library(folders, name, literal=literal)
    for text in (*CORPUS, f"{START}user{STOP}", "".join(CORPUS)):
        ids = encode(text, tokenizers[name], parse_special=not literal)
        assert ids == raw.encode(text, add_special_tokens=False).ids


@fuzzed(300)
@given(text=st.text(LETTERS, max_size=50), name=st.sampled_from(NAMES))
def test_random_text_gets_the_ids_of_the_library(
    text: str, name: str, folders: dict[str, Path], tokenizers: dict[str, Tokenizer]
) -> None:
    assert encode(text, tokenizers[name]) == backend(name).encode(text).ids


@pytest.mark.parametrize("name", NAMES)
def test_texts_come_back_whole(name: str, tokenizers: dict[str, Tokenizer]) -> None:
    for text in CORPUS:
        # Canonical composition is part of the byte-level one.
        if name == "byte-level":
            text = normalizers.NFC().normalize_str(text)
        # A metaspace adds a space only where there is none, so that one at the start is lost.
        if name == "metaspace":
            text = text.lstrip(" ")
        ids = encode(text, tokenizers[name], parse_special=False)
        assert tokenizers[name].decode(ids, skip_special=True) == text


def test_a_folder_and_a_gguf_file_of_one_model_have_one_fingerprint(
    tmp_path: Path, tokenizers: dict[str, Tokenizer]
) -> None:
    metadata = byte_level_metadata("qwen2")
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list) and isinstance(types, list)
    padded = [*tokens, *(f"[PAD{i}]" for i in range(len(tokens), len(tokens) + 3))]
    file = Tokenizer.from_gguf(
        metadata | {"tokenizer.ggml.tokens": padded, "tokenizer.ggml.token_type": [*types, 5, 5, 5]}
    )
    rows = {"config.json": {"vocab_size": len(tokens) + 3}}
    used = Tokenizer.from_folder(folder(tmp_path, byte_level(), files=rows))
    assert used.vocab_size == len(padded)
    assert used.fingerprint == file.fingerprint != tokenizers["byte-level"].fingerprint


def test_spaced_folders_have_the_fingerprint_of_their_gguf_file(
    tokenizers: dict[str, Tokenizer],
) -> None:
    user_defined = [*USER_DEFINED, *SPACES]
    model = sentence_piece(add_dummy_prefix=False, user_defined_symbols=user_defined)
    metadata = sentence_piece_metadata(model, add_space_prefix=False, user_defined=user_defined)
    file, used = Tokenizer.from_gguf(metadata), tokenizers["unprefixed"]
    assert file.fingerprint == used.fingerprint
    assert all(file.token_bytes(i) == used.token_bytes(i) for i in range(file.vocab_size))


@pytest.mark.parametrize("name", ["prefixed", "metaspace"])
def test_an_answer_keeps_the_space_that_a_whole_text_loses(
    name: str, tokenizers: dict[str, Tokenizer]
) -> None:
    used = tokenizers[name]
    ids = encode("The ferry", used)
    assert used.decode(ids, skip_special=True) == "The ferry"
    assert b"".join(map(used.token_bytes, ids)) == b" The ferry"


def test_i17_every_file_that_names_an_end_is_heard(tmp_path: Path) -> None:
    files = {
        "generation_config.json": {"eos_token_id": [5, 6]},
        "config.json": {"eos_token_id": 7, "text_config": {"eos_token_id": [8]}},
        "tokenizer_config.json": {"eos_token": START},
    }
    used = Tokenizer.from_folder(folder(tmp_path, byte_level(), files=files))
    # STOP has a text that is known to end a turn.
    ends = map(byte_level().token_to_id, (START, STOP))
    assert used.eos_ids == {5, 6, 7, 8, *ends}
    assert used.token_text(used.eos_id) == START


def test_ends_without_a_name_are_ends(tmp_path: Path) -> None:
    files = {"generation_config.json": {"eos_token_id": 5}, "config.json": {"eos_token_id": None}}
    used = Tokenizer.from_folder(folder(tmp_path, byte_level(), files=files))
    assert (used.eos_ids, used.eos_id, used.bos_id) == (
        {5, byte_level().token_to_id(STOP)},
        5,
        None,
    )


def test_the_special_tokens_map_speaks_where_the_configuration_is_silent(tmp_path: Path) -> None:
    files = {
        "special_tokens_map.json": {"bos_token": {"content": STOP}, "eos_token": STOP},
        "tokenizer_config.json": {"bos_token": START, "eos_token": None},
    }
    used = Tokenizer.from_folder(folder(tmp_path, byte_level(), files=files))
    assert (used.token_text(used.bos_id), used.token_text(used.eos_id)) == (START, STOP)


def post_processor() -> dict[str, Any]:
    """Adds a BOS and an EOS."""
    ids = [(text, byte_level().token_to_id(text)) for text in CONTROL]
    made = Backend.from_str(byte_level().to_str())
    made.post_processor = processors.TemplateProcessing(f"{START} $A {STOP}", None, ids)
    found: dict[str, Any] = json.loads(made.to_str())["post_processor"]
    return found


@pytest.mark.parametrize(
    ("processed", "asked", "expected"),
    [
        (False, {}, ("", "")),
        (True, {}, (START, STOP)),
        (True, {"add_eos_token": False}, (START, "")),
        (True, {"add_bos_token": False}, ("", STOP)),
        (False, {"add_bos_token": True}, (START, "")),
        (True, {"add_bos_token": True, "add_eos_token": None}, (START, STOP)),
    ],
)
def test_bos_and_eos_are_added_as_the_configuration_or_the_post_processor_says(
    tmp_path: Path, processed: bool, asked: dict[str, Any], expected: tuple[str, str]
) -> None:
    edit = {"post_processor": post_processor()} if processed else {}
    path = folder(
        tmp_path, byte_level(), files={"tokenizer_config.json": CONFIG | asked}, edit=edit
    )
    used = Tokenizer.from_folder(path)
    texts = [used.token_text(i) for i in encode("the", used, add_special=True)]
    assert "".join(texts) == f"{expected[0]}the{expected[1]}"
    assert encode("the", used) == byte_level().encode("the").ids


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    edited = Backend.from_str(byte_level().to_str())
    edited.enable_truncation(4)
    edited.enable_padding(length=64, pad_token=STOP)
    used = Tokenizer.from_folder(folder(tmp_path, edited))
    for text in ("a", "one two three four five six seven"):
        assert encode(text, used) == byte_level().encode(text).ids


def test_no_merge_makes_a_control_token_where_special_text_is_not_parsed(tmp_path: Path) -> None:
    made = byte_level().token_to_id("er")
    token = {"id": made, "content": "er", "special": True, "normalized": False}
    for flag in ("single_word", "lstrip", "rstrip"):
        token[flag] = False
    document = json.loads(byte_level().to_str())
    edit = {"added_tokens": [token, *document["added_tokens"]]}
    used = Tokenizer.from_folder(folder(tmp_path, byte_level(), edit=edit))
    assert encode("er", used) == [made]
    ids = encode("er", used, parse_special=False)
    assert made not in ids
    assert used.decode(ids, skip_special=True) == "er"


def test_a_character_without_tokens_is_refused_and_named(tmp_path: Path) -> None:
    document = json.loads(byte_level().to_str())
    vocabulary = document["model"]["vocab"]
    vocabulary["(gone)"] = vocabulary.pop("Ă")
    merges = [pair for pair in document["model"]["merges"] if "Ă" not in "".join(pair)]
    edit = {"model": document["model"] | {"merges": merges}}
    used = Tokenizer.from_folder(folder(tmp_path, byte_level(), edit=edit))
    with pytest.raises(InvalidField, match=r"U\+0002 \(character 1 of"):
        encode("a\x02b", used)


@pytest.mark.parametrize("name", NAMES)
def test_a_lone_surrogate_is_refused(name: str, tokenizers: dict[str, Tokenizer]) -> None:
    with pytest.raises(InvalidField, match="not Unicode"):
        encode("a\ud800", tokenizers[name])


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"model": {"type": "WordPiece", "vocab": {}}}, "model type 'WordPiece' of tokenizer.json"),
    ({"model": {"type": "Unigram", "vocab": []}}, "model type 'Unigram'"),
    ({"model": None}, "model type None"),
    ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "has no vocabulary"),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}, "not usable: .*`b`"),
    ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "not usable"),
    ({"model": {"type": "BPE", "vocab": {"a": 1 << 31}, "merges": []}}, "takes at most 4194304"),
    ({"model": {"type": "BPE", "vocab": {"b": 0}, "merges": []}, "added_tokens": []}, "letter a"),
    (
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}},
        r"the id \d+, and its vocabulary 1",
    ),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1}}, "dropout in"),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "end_of_word_suffix": "x"}}, "end_of_word"),
    ({"pre_tokenizer": {"type": "Whitespace"}, "normalizer": None}, "its steps are Whitespace"),
    ({"pre_tokenizer": {"type": "Klingon"}, "normalizer": None}, "not usable"),
    ({"pre_tokenizer": None, "normalizer": None}, "its steps are none"),
    ({"added_tokens": [{"id": 1}]}, "not usable"),
]


@pytest.mark.parametrize(("edit", "problem"), BROKEN)
def test_an_unusable_tokenizer_is_refused_at_start(
    tmp_path: Path, edit: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ModelFileError, match=problem):
        Tokenizer.from_folder(folder(tmp_path, byte_level(), edit=edit))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("tokenizer.json", "{", "tokenizer.json is not JSON"),
        ("tokenizer.json", "[" * 100_000, "tokenizer.json is not JSON"),
        ("tokenizer.json", "[]", "holds no JSON object"),
        ("tokenizer.json", "{}", "has no tokenizer.json"),
        ("tokenizer_config.json", "nonsense", "tokenizer_config.json is not JSON"),
        ("tokenizer_config.json", {"bos_token": "<nowhere>"}, "'<nowhere>', which is no token"),
        ("tokenizer_config.json", {"eos_token": 5}, "eos_token in .* is 5, not a token"),
        ("tokenizer_config.json", {"add_bos_token": True}, "adds a BOS token"),
        ("tokenizer_config.json", {"add_bos_token": "yes"}, "'yes', no bool"),
        ("generation_config.json", {"eos_token_id": "2"}, "generation_config.json is '2', not ids"),
        ("generation_config.json", {"eos_token_id": [True]}, "not ids"),
        ("config.json", {"eos_token_id": [1, 99_999]}, "is 99999, outside the vocabulary"),
        ("config.json", {"vocab_size": 1 << 40}, "takes at most 4194304"),
    ],
)
def test_a_broken_file_of_a_folder_is_named(
    tmp_path: Path, name: str, content: object, problem: str
) -> None:
    with pytest.raises(ModelFileError, match=problem):
        Tokenizer.from_folder(folder(tmp_path, byte_level(), files={name: content}))


def test_a_folder_without_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"has no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ModelFileError, match=r"cannot read .*tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
