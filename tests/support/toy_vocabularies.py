"""Texts in many scripts, and small tokenizers of every kind that are trained on them.

Knows what GGUF files and Hugging Face folders say of a tokenizer, nothing of specd. The byte-level
vocabularies are greedy on purpose: their merges reach over spaces, digits and marks, so that a text
that is split in the wrong place gets other ids.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from tests.support.slow_bpe import PATTERNS

with warnings.catch_warnings():
    # The bindings that its builder generates are not quite up to Python 3.12.
    warnings.simplefilter("ignore", DeprecationWarning)
    import sentencepiece

WITH_SPECIALS = "<s> </s> <|im_end|>a <0x0A> <unk> [INST] <think>no</think>  "

CORPUS = (
    "The ferry's late; they'll wait, won't they? I'D SAY SO: WE'VE time.",
    "Éléonore mange l’été à Besançon, où ça coûte 1 234,56 €.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. Straße, ŁÓDŹ, İstanbul, ﬁne",
    "Ο καπετάνιος μετράει τους επιβάτες δύο φορές. ΑΣΣΟΣ ἀρχή",
    "Капитан считает пассажиров дважды, потому что ЁЖ не йод.",
    "القبطان يعدّ الركّاب مرّتين ١٢٣٤ والسفينة تغادر",
    "הקברניט סופר את הנוסעים פעמיים שָׁלוֹם",
    "कप्तान यात्रियों को दो बार गिनता है। १२३ क्षत्रिय",
    "กัปตันนับผู้โดยสารสองครั้ง เพราะครั้งแรกผิดเสมอ",
    "船長は乗客を二回数える。カタカナ、ﾊﾝｶｸ、１２３、你好世界",
    "선장은 승객을 두 번 센다. 각 한글",
    "👩\u200d👩\u200d👧\u200d👦 👍🏽 🏳️\u200d🌈 🇨🇿🇯🇵 ☎️ a🙂b",
    "e\u0301 a\u030a n\u0303 o\u0302\u0323 Z\u0351\u036b\u0343",
    "def count(deck, limit=12):\n    for person in deck:\n\tif y!='\\n':\n        return -1\n",
    "const parseURLAndGo = (XMLHttpRequest) => { return `${a}/${b}//c` }; iOSApp HTTPServer",
    ";\n//;\n//;\n//;\n//",
    '{"name": "ferry", "stops": [1, 22, 333, 4444, 55555], "open": true}\r\n\r\n',
    "0 00 000 0000 123456789 3.14159 1e-10 0xDEADBEEF ½ Ⅷ ² 2024-11-30T14:00:00Z",
    "   leading, trailing   ",
    " " * 37 + "x" + "\n" * 9 + "\t" * 5 + " \n \n  \n",
    "a\u00a0b\u3000c\u2003d\u2028e\u0085f\u200bg\ufeffh",
    "\x01\x02\x1f\x7f\x80\x9f\x1c\x0b\x0c",
    "....... ------ ======== !!!??? ((())) ~~~ ^^^ ||| $$$ +++ <<<>>>",
    "\U0010fffd \ue000 \ufffd \ufdd0",
    WITH_SPECIALS,
    "https://example.org/a_b-c?d=e&f=%20#g user@example.org C:\\Temp\\x.txt",
    "",
)
# What the vocabularies learn from. No merge of theirs makes a special token.
_LESSONS = tuple(text for text in CORPUS if text != WITH_SPECIALS)
LETTERS = "".join(sorted(set("".join(CORPUS))))

CONTROL = ("<|im_start|>", "<|im_end|>")
USER_DEFINED = ("<think>", "</think>", "\n\n\n")


@cache
def byte_level_metadata(pre: str) -> dict[str, object]:
    """A byte-level GGUF tokenizer whose merges know no borders of words."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2500, min_frequency=1, initial_alphabet=letters, show_progress=False
    )
    made.train_from_iterator([text * 2 for text in _LESSONS], trainer)
    model = json.loads(made.to_str())["model"]
    tokens = [*sorted(model["vocab"], key=model["vocab"].get), *CONTROL, *USER_DEFINED]
    types = [1] * (len(tokens) - 5) + [3, 3, 4, 4, 4]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": tokens.index(CONTROL[0]),
        "tokenizer.ggml.eos_token_id": tokens.index(CONTROL[1]),
    }


@cache
def byte_level() -> Tokenizer:
    """The library's tokenizer over the same tokens, as Qwen has it: with composed characters."""
    metadata = byte_level_metadata("qwen2")
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert isinstance(tokens, list) and isinstance(merges, list)
    table = {token: i for i, token in enumerate(tokens[: -len(CONTROL + USER_DEFINED)])}
    made = Tokenizer(models.BPE(table, [tuple(merge.split(" ")) for merge in merges]))
    made.normalizer = normalizers.NFC()
    [split] = PATTERNS["qwen2"]
    made.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(split), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    made.add_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    made.add_tokens([AddedToken(text, normalized=False) for text in USER_DEFINED])
    return made


def sentence_piece(**options: Any) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece model of 1,500 pieces, with byte tokens, that leaves the text as it is."""
    chosen = {
        "vocab_size": 1500,
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "character_coverage": 0.99,
        "allow_whitespace_only_pieces": True,
        "max_sentence_length": 1 << 16,
        "minloglevel": 2,
    }
    model = io.BytesIO()
    # A trainer of words sees no newline: it reads lines.
    sentences = [line for text in _LESSONS for line in text.splitlines()] * 3
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, **(chosen | options)
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def sentence_piece_metadata(
    model: sentencepiece.SentencePieceProcessor,
    *,
    add_space_prefix: bool = True,
    user_defined: Sequence[str] = (),
) -> dict[str, object]:
    """What converters write of a SentencePiece model into a GGUF file."""
    ids = range(model.vocab_size())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [model.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": [_type(model, i, user_defined) for i in ids],
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }


def _type(
    model: sentencepiece.SentencePieceProcessor, token_id: int, user_defined: Sequence[str]
) -> int:
    if model.is_unknown(token_id):
        return 2
    if model.is_control(token_id):
        return 3
    if model.is_byte(token_id):
        return 6
    return 4 if model.id_to_piece(token_id) in user_defined else 1


# As Gemma has them: runs of spaces that are found before anything merges.
SPACES = tuple("▁" * count for count in range(2, 9))


def folder(
    path: Path,
    tokenizer: Tokenizer,
    *,
    files: Mapping[str, object] | None = None,
    edit: Mapping[str, object] | None = None,
) -> Path:
    """Write a Hugging Face folder: tokenizer.json with top-level `edit`s, and other JSON files."""
    path.mkdir(parents=True, exist_ok=True)
    document = json.loads(tokenizer.to_str()) | dict(edit or {})
    (path / "tokenizer.json").write_text(json.dumps(document))
    for name, content in (files or {}).items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / name).write_text(text)
    return path


def byte_level_folder(path: Path, *, files: Mapping[str, object] | None = None) -> Path:
    """A folder with the byte-level tokenizer and these JSON files."""
    return folder(path, byte_level(), files=files)
