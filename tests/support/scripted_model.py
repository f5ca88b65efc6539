"""Models that answer what a test wrote down: each script is a row of tokens that follow each other.

Builds on the toy's vocabulary, behind which every token of every script has an id of its own, even
where texts repeat, so that one token decides the next. Knows nothing of specd.
Invariant: a prompt that ends with a script's first id is answered, greedily, with the rest of the
script and then <|im_end|>, whatever else the prompt holds.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter, TokenType

from benchmarks.toy_gguf import (
    CHAT_TEMPLATE,
    IM_END,
    ToyVocabulary,
    add_tensor,
    byte_characters,
    toy_vocabulary,
    write_file,
    write_shape,
    write_tokenizer,
)
from benchmarks.toy_weights import ToyShape

# Bytes are an ordinary token of these bytes, a string is a control token with this text.
Piece = bytes | str
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Script:
    """The prompt that starts it, and the ids that answer, <|im_end|> last."""

    start: int
    answer: tuple[int, ...]


def cut_bytes(text: str, seed: int, longest: int = 4) -> list[bytes]:
    """The UTF-8 of `text` in tokens of random lengths, most of which cut characters apart."""
    choose = random.Random(seed)
    data, pieces = text.encode(), []
    while data:
        length = choose.randint(1, longest)
        pieces.append(data[:length])
        data = data[length:]
    return pieces


def build_scripted_model(
    path: Path,
    scripts: Sequence[Sequence[Piece]],
    *,
    ends: Mapping[str, int] | None = None,
    context_length: int = 2048,
) -> list[Script]:
    """Write a model of these scripts. `ends`: metadata keys, and the script whose last piece is
    the id of that key: it ends there, or goes on to <|im_end|> where nobody heeds the key."""
    vocabulary = toy_vocabulary()
    found = [_append(vocabulary, script) for script in scripts]
    shape = ToyShape(
        len(vocabulary.tokens), layers=1, heads=2, kv_heads=1, ffn=64, context_length=context_length
    )
    writer = GGUFWriter(path, "llama")
    write_shape(writer, shape)
    write_tokenizer(writer, vocabulary, CHAT_TEMPLATE)
    for key, place in (ends or {}).items():
        writer.add_uint32(key, found[place].answer[-2])
    for name, values in _tensors(shape, found).items():
        add_tensor(writer, name, values, "F32")
    write_file(writer)
    return found


def _append(vocabulary: ToyVocabulary, script: Sequence[Piece]) -> Script:
    """Give the script ids of its own."""
    characters = byte_characters()
    start = len(vocabulary.tokens)
    vocabulary.tokens.append(f"<|start_{start}|>")
    vocabulary.types.append(int(TokenType.CONTROL))
    for piece in script:
        is_text = isinstance(piece, bytes)
        text = "".join(characters[byte] for byte in piece) if isinstance(piece, bytes) else piece
        vocabulary.tokens.append(text)
        vocabulary.types.append(int(TokenType.NORMAL if is_text else TokenType.CONTROL))
    last = len(vocabulary.tokens)
    return Script(start, (*range(start + 1, last), vocabulary.id_of(IM_END)))


def _tensors(shape: ToyShape, scripts: Sequence[Script]) -> dict[str, F32]:
    """A decoder whose one layer adds nothing: the head finds each token's successor."""
    hidden, kv = shape.hidden, shape.kv_heads * shape.head_dim
    random_numbers = np.random.default_rng(0)
    embedding: F32 = random_numbers.normal(0, 1, (shape.vocab, hidden)).astype(np.float32)
    # One direction belongs to the last tokens, which all have the same successor. Rows are of one
    # length, so that no other token's score comes near the successor's.
    last = [(script.start, *script.answer)[-2] for script in scripts]
    embedding[:, 0], embedding[last] = 0, np.eye(1, hidden)
    embedding *= hidden**0.5 / np.linalg.norm(embedding, axis=1, keepdims=True)
    head = np.zeros_like(embedding)
    for script in scripts:
        before = (script.start, *script.answer[:-1])
        head[list(script.answer)] = embedding[list(before)]
    sizes = {
        "attn_q": (hidden, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, hidden),
        "ffn_gate": (shape.ffn, hidden),
        "ffn_up": (shape.ffn, hidden),
        "ffn_down": (hidden, shape.ffn),
    }
    ones = np.ones(hidden, np.float32)
    layer = {f"blk.0.{name}.weight": np.zeros(size, np.float32) for name, size in sizes.items()}
    norms = ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")
    outer = {"token_embd.weight": embedding, "output.weight": head}
    return outer | layer | {f"{name}.weight": ones for name in norms}
