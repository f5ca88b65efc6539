"""Builds toy GGUF models of any family: random seeded weights, a real byte-level tokenizer.

Knows the metadata keys and tensor names that llama.cpp writes, nothing of specd. A toy is about a
megabyte. Its vocabulary is: ids 0 to 255 single bytes (id 0 is an ordinary token, on purpose),
then merges learned from a small text, then unused fillers if the merges ran out, then the
specials. Every text can be encoded; emoji and Hangul split over byte tokens.

Invariant: equal arguments give equal files, byte for byte.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import quantize

from benchmarks.toy_weights import ToyShape, ToyWeights

LinearType = Literal["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
SPECIALS = (END_OF_TEXT, IM_START, IM_END)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

TRAINING_TEXT = """
The ferry leaves the harbour at seven and returns before the light is gone. On the deck there are
crates of apples, a bicycle with a bent wheel, and a dog that belongs to nobody. The captain counts
the passengers twice, because the first count is always wrong. When the fog comes down over the
water, he rings the bell and waits; the other boats answer one after another, each with its own
note. Nobody speaks. Then the engine starts again, and the shore appears where it should not be.
def count_passengers(deck, limit=12):
    total = 0
    for person in deck:
        if person.has_ticket and total < limit:
            total = total + 1
    return total
{"name": "ferry", "stops": [1, 2, 3], "open": true, "captain": {"name": "Ada", "age": 57}}
"""


def byte_characters() -> list[str]:
    """The character that byte-level BPE writes for each byte value."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (value for value in range(256) if value not in printable)
    table = {value: chr(value) for value in printable}
    table.update({value: chr(256 + place) for place, value in enumerate(others)})
    return [table[value] for value in range(256)]


@dataclass(frozen=True, slots=True)
class ToyVocabulary:
    """What a GGUF file says of its tokenizer."""

    tokens: list[str]
    types: list[int]
    merges: list[str]

    def id_of(self, token: str) -> int:
        return self.tokens.index(token)


def toy_vocabulary(
    size: int = 512, *, user_defined: Sequence[str] = (), specials: Sequence[str] = SPECIALS
) -> ToyVocabulary:
    """A vocabulary of exactly `size` tokens; see the module docstring for its order."""
    tail = [*user_defined, *specials]
    tokens = byte_characters()
    num_merges = size - len(tokens) - len(tail)
    if num_merges < 0:
        raise ValueError(f"a toy vocabulary needs at least {len(tokens) + len(tail)} tokens")
    merges = _learn_merges(num_merges)
    tokens += ["".join(pair) for pair in merges]
    types = [int(TokenType.NORMAL)] * len(tokens)
    fillers = [f"<|unused_{place}|>" for place in range(size - len(tokens) - len(tail))]
    types += [int(TokenType.UNUSED)] * len(fillers)
    types += [int(TokenType.USER_DEFINED)] * len(user_defined)
    types += [int(TokenType.CONTROL)] * len(specials)
    return ToyVocabulary(tokens + fillers + tail, types, [" ".join(pair) for pair in merges])


def _learn_merges(limit: int) -> list[tuple[str, str]]:
    """Up to `limit` byte-pair merges of the training text, the most frequent pair first."""
    characters = byte_characters()
    pieces = re.findall(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+", TRAINING_TEXT)
    words = Counter(tuple(characters[byte] for byte in piece.encode()) for piece in pieces)
    merges: list[tuple[str, str]] = []
    made = set(characters)
    while len(merges) < limit:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] += count
        fresh = [(-count, pair) for pair, count in pairs.items() if "".join(pair) not in made]
        if not fresh:
            break
        best = min(fresh)[1]
        merges.append(best)
        made.add("".join(best))
        words = _apply_merge(words, best)
    return merges


def _apply_merge(
    words: Counter[tuple[str, ...]], pair: tuple[str, str]
) -> Counter[tuple[str, ...]]:
    merged: Counter[tuple[str, ...]] = Counter()
    for word, count in words.items():
        parts: list[str] = []
        for part in word:
            if parts and (parts[-1], part) == pair:
                parts[-1] += part
            else:
                parts.append(part)
        merged[tuple(parts)] += count
    return merged


def build_toy_model(
    path: Path,
    *,
    seed: int = 0,
    vocab: int = 512,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 32,
    ffn: int = 256,
    context_length: int = 512,
    linear_type: LinearType = "F32",
    embed_type: LinearType = "F32",
    tied: bool = True,
    nan_rows: Iterable[int] = (),
    user_defined: Sequence[str] = (),
    chat_template: str | None = CHAT_TEMPLATE,
    add_bos: bool = False,
    architecture: str = "llama",
    hidden: int = 0,
    settings: Mapping[str, bool | int | float | str | list[bool]] | None = None,
    extra_tensors: Mapping[str, npt.NDArray[np.float32]] | None = None,
) -> ToyVocabulary:
    """Write a toy model to `path` and return its vocabulary.

    `nan_rows`: token ids whose embedding row is NaN, so that only requests that contain one of
    them get NaN; needs an untied model with float embeddings. `hidden`: 0 is heads * head_dim.
    `settings`: more metadata, under the prefix of the architecture. `extra_tensors`: written in
    fp32 behind the model's own.
    """
    shape = ToyShape(
        vocab, layers, heads, kv_heads, head_dim, ffn, context_length, own_hidden=hidden
    )
    vocabulary = toy_vocabulary(vocab, user_defined=user_defined)
    poisoned = list(nan_rows)
    if poisoned and (tied or embed_type not in {"F32", "F16", "BF16"}):
        raise ValueError("nan_rows needs tied=False and embed_type F32, F16 or BF16")
    writer = GGUFWriter(path, architecture)
    write_shape(writer, shape)
    for key, value in (settings or {}).items():
        _write_setting(writer, f"{architecture}.{key}", value)
    write_tokenizer(writer, vocabulary, chat_template, add_bos=add_bos)
    weights = ToyWeights(shape, seed, tied)
    for name, values in weights.embeddings():
        if name == "token_embd.weight":
            values[poisoned] = np.nan
        add_tensor(writer, name, values, embed_type)
    for name, values in weights.norms():
        add_tensor(writer, name, values, "F32")
    for name, values in weights.linears():
        add_tensor(writer, name, values, linear_type)
    for name, values in [*weights.vectors(architecture), *(extra_tensors or {}).items()]:
        add_tensor(writer, name, values, "F32")
    write_file(writer)
    return vocabulary


def write_file(writer: GGUFWriter) -> None:
    """Write all that was added, and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_shape(writer: GGUFWriter, shape: ToyShape) -> None:
    writer.add_name("specd toy")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context_length)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.head_dim)
    if shape.hidden != shape.query:
        writer.add_key_length(shape.head_dim)
        writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_vocab_size(shape.vocab)


def _write_setting(
    writer: GGUFWriter, key: str, value: bool | int | float | str | list[bool]
) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)


def tokenizer_metadata(
    vocabulary: ToyVocabulary, chat_template: str = CHAT_TEMPLATE
) -> dict[str, object]:
    """What an opened toy file says of its tokenizer, without a file."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocabulary.tokens,
        "tokenizer.ggml.token_type": vocabulary.types,
        "tokenizer.ggml.merges": vocabulary.merges,
        "tokenizer.ggml.bos_token_id": vocabulary.id_of(IM_START),
        "tokenizer.ggml.eos_token_id": vocabulary.id_of(IM_END),
        "tokenizer.ggml.padding_token_id": vocabulary.id_of(END_OF_TEXT),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": chat_template,
    }


def write_tokenizer(
    writer: GGUFWriter,
    vocabulary: ToyVocabulary,
    chat_template: str | None,
    *,
    add_bos: bool = False,
) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(vocabulary.id_of(IM_START))
    writer.add_eos_token_id(vocabulary.id_of(IM_END))
    writer.add_pad_token_id(vocabulary.id_of(END_OF_TEXT))
    writer.add_add_bos_token(add_bos)
    writer.add_add_space_prefix(False)
    if chat_template is not None:
        writer.add_chat_template(chat_template)


def add_tensor(
    writer: GGUFWriter, name: str, values: npt.NDArray[np.float32], type_name: LinearType
) -> None:
    kind = GGMLQuantizationType[type_name]
    writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
