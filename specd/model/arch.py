"""The shape of a model, read from GGUF metadata. Families are data: a family is a row of a table.

Knows names of metadata keys and nothing of tensors. Invariant: a `ModelConfig` describes a model
that `decoder.py` can run; everything else was refused with its name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from specd.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class Family:
    """What sets one architecture apart.

    interleaved_rope: the file stores query and key rows so that rotary pairs are neighbours
    (2i, 2i+1), as llama.cpp's converter does for Llama; the loader undoes it.
    """

    interleaved_rope: bool


# Rotary tables take 4 bytes per position and head element: 0.5 GB here for heads of 128.
MAX_CONTEXT_LENGTH = 1 << 20

FAMILIES: Mapping[str, Family] = {"llama": Family(interleaved_rope=True)}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a decoder: numbers of elements, and positions for `context_length`."""

    name: str
    architecture: str
    family: Family
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    context_length: int
    rope_base: float
    norm_eps: float

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def fused_heads(self) -> int:
        """Heads of the fused query, key and value projection."""
        return self.num_heads + 2 * self.num_kv_heads

    @property
    def kv_width(self) -> int:
        """Elements of K and V together, per position and layer."""
        return 2 * self.num_kv_heads * self.head_dim


class _Metadata:
    """Typed look-ups under one architecture prefix. A missing or absurd value is refused."""

    def __init__(self, metadata: Mapping[str, object], prefix: str) -> None:
        self._metadata = metadata
        self._prefix = prefix

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._metadata.get(f"{self._prefix}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise ModelFileError(
                f"{self._prefix}.{key} should be a positive integer and is {value!r}"
            )
        return value

    def number(self, key: str, default: float) -> float:
        value = self._metadata.get(f"{self._prefix}.{key}", default)
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
        if not 0 < number < math.inf:
            raise ModelFileError(
                f"{self._prefix}.{key} should be a positive number and is {value!r}"
            )
        return float(number)

    def refuse(self, key: str, because: str) -> None:
        if f"{self._prefix}.{key}" in self._metadata:
            raise ModelFileError(f"the model file uses {self._prefix}.{key}: {because}")


def config_from_gguf(metadata: Mapping[str, object]) -> ModelConfig:
    """Read the sizes of a model.

    Raises:
        ModelFileError: the architecture is not supported, or a size is missing or inconsistent.
    """
    architecture = metadata.get("general.architecture")
    family = FAMILIES.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        raise ModelFileError(
            f"architecture {architecture!r} is not supported; "
            f"this version serves: {', '.join(FAMILIES)}"
        )
    fields = _Metadata(metadata, str(architecture))
    fields.refuse("expert_count", "mixture-of-experts models are not supported")
    fields.refuse("rope.scaling.type", "scaled rotary positions are not supported")
    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    kv_heads = fields.integer("attention.head_count_kv", heads)
    head_dim = fields.integer("attention.key_length", hidden // heads)
    if (
        heads % kv_heads
        or head_dim % 2
        or fields.integer("rope.dimension_count", head_dim) != (head_dim)
    ):
        raise ModelFileError(
            f"{heads} heads over {kv_heads} KV heads of {head_dim} elements: only whole groups "
            "with rotary positions over the whole head are supported"
        )
    context_length = fields.integer("context_length")
    if context_length > MAX_CONTEXT_LENGTH:
        raise ModelFileError(
            f"a context of {context_length} positions is not supported; "
            f"this version serves at most {MAX_CONTEXT_LENGTH}"
        )
    return ModelConfig(
        name=str(metadata.get("general.name") or architecture),
        architecture=str(architecture),
        family=family,
        num_layers=fields.integer("block_count"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_size=fields.integer("feed_forward_length"),
        vocab_size=_vocab_size(metadata, fields),
        context_length=context_length,
        rope_base=fields.number("rope.freq_base", 10000.0),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon", 1e-5),
    )


def check_tokenizer(config: ModelConfig, num_tokens: int) -> None:
    """Raises: ModelFileError where the tokenizer has tokens that the model has no rows for."""
    if num_tokens > config.vocab_size:
        raise ModelFileError(
            f"the tokenizer has {num_tokens} tokens and the model {config.vocab_size}"
        )


def _vocab_size(metadata: Mapping[str, object], fields: _Metadata) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    known = len(tokens) if isinstance(tokens, list) else None
    return fields.integer("vocab_size", known)
