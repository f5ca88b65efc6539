"""The shape of a model, read from metadata. Families are data: a family is a row of a table.

Knows names of metadata keys (those of GGUF, whatever the model's format) and nothing of tensors.
Invariant: a `ModelConfig` describes a model that `decoder.py` can run; everything else was refused
with its name, a key that nobody here knows included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from specd.errors import ModelFileError
from specd.model.metadata import Fields

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Family:
    """What sets one architecture apart.

    interleaved_rope: GGUF stores query and key rows so that rotary pairs are neighbours
    (2i, 2i+1), as llama.cpp's converter does for Llama; the loader undoes it.
    rope_factors: a file may hold `rope_freqs.weight`, divisors of the rotary frequencies.
    qkv_bias: queries, keys and values always have one; elsewhere a file may hold it.
    head_norms: queries and keys are normed per head, before their rotation.
    post_norms: what attention and feed-forward give is normed before it is added.
    norm_offset: is missing from norm weights where a source lacks it.
    full_every: with a window, every so many-th layer sees all positions; 0: none does.
    local_rope_base: of layers with a window, which then ignore rotary scaling.
    share_scaled: numbers of layers at which the attention scale follows the hidden size per head
    (Gemma 3 27B), which GGUF does not tell.
    """

    interleaved_rope: bool = False
    rope_factors: bool = False
    qkv_bias: bool = False
    head_norms: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    scaled_embedding: bool = False
    activation: Activation = "silu"
    full_every: int = 0
    local_rope_base: float | None = None
    share_scaled: tuple[int, ...] = ()


# Rotary tables take 4 bytes per position and head element: 0.5 GB here for heads of 128.
MAX_CONTEXT_LENGTH = 1 << 20
# Several times what any known model has; a corrupt number beyond would fill the memory.
MAX_LAYERS, MAX_HEAD_DIM = 1024, 1024

FAMILIES: Mapping[str, Family] = {
    "llama": Family(interleaved_rope=True, rope_factors=True),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(head_norms=True),
    "gemma3": Family(
        head_norms=True,
        post_norms=True,
        norm_offset=1.0,
        scaled_embedding=True,
        activation="gelu_tanh",
        full_every=6,
        local_rope_base=10000.0,
        share_scaled=(62,),
    ),
}

# What no family here has: the value at which a key changes nothing, and what it would mean.
_UNSUPPORTED: Mapping[str, tuple[object, str]] = {
    "expert_count": (0, "mixture-of-experts models are not supported"),
    "expert_used_count": (0, "mixture-of-experts models are not supported"),
    "attn_logit_softcapping": (0, "soft caps of attention scores are not supported"),
    "final_logit_softcapping": (0, "soft caps of logits are not supported"),
    "logit_scale": (1, "scaled logits are not supported"),
    "embedding_scale": (1, "a scale of embeddings is not supported"),
    "residual_scale": (1, "a scale of residuals is not supported"),
    "use_parallel_residual": (False, "parallel residuals are not supported"),
    "attention.causal": (True, "only causal attention is supported"),
    "attention.clamp_kqv": (0, "clamped queries, keys and values are not supported"),
    "attention.max_alibi_bias": (0, "ALiBi positions are not supported"),
    "rope.scaling.attn_factor": (1, "a rotary attention factor is not supported"),
}
# Remarks of a converter that change nothing.
_REMARKS = (
    "tensor_data_layout",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
)


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary frequencies: base ** (-2i / head_dim), divided by `divisors[i]` unless empty."""

    base: float
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a decoder: numbers of elements, and positions for `context_length`.

    windows: per layer, how many positions a query sees, itself included; 0: all.
    layer_ropes: per layer, its place in `ropes`.
    attention_scale: what scores are multiplied by. embedding_scale: embeddings, after rounding to
    the activation type.
    """

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
    norm_eps: float
    windows: tuple[int, ...]
    ropes: tuple[Rope, ...]
    layer_ropes: tuple[int, ...]
    attention_scale: float
    embedding_scale: float

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def fused_heads(self) -> int:
        """Heads of the fused query, key and value projection."""
        return self.num_heads + 2 * self.num_kv_heads

    @property
    def query_width(self) -> int:
        """Elements of all query heads, per position."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of K and V together, per position and layer."""
        return 2 * self.num_kv_heads * self.head_dim


def config_from_gguf(metadata: Mapping[str, object]) -> ModelConfig:
    """Read the sizes of a model.

    Raises:
        ModelFileError: the architecture is not supported, a size is missing or inconsistent, or a
        key says what this version does not do.
    """
    architecture = metadata.get("general.architecture")
    family = FAMILIES.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        raise ModelFileError(
            f"architecture {architecture!r} is not supported; "
            f"this version serves: {', '.join(FAMILIES)}"
        )
    fields = Fields(metadata, str(architecture))
    for key, (neutral, because) in _UNSUPPORTED.items():
        fields.refuse_unless(key, neutral, because)
    heads, kv_heads, head_dim = _heads(fields)
    hidden = fields.integer("embedding_length")
    num_layers = _bounded(fields, "block_count", MAX_LAYERS, "a model of {} layers")
    context_length = _bounded(
        fields, "context_length", MAX_CONTEXT_LENGTH, "a context of {} positions"
    )
    window, local = _windows(fields, family, num_layers)
    ropes = _ropes(fields, family, head_dim, has_local=any(local))
    config = ModelConfig(
        name=str(metadata.get("general.name") or architecture),
        architecture=str(architecture),
        family=family,
        num_layers=num_layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_size=fields.integer("feed_forward_length"),
        vocab_size=_vocab_size(metadata, fields),
        context_length=context_length,
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        # A window as long as the context hides nothing.
        windows=tuple(window if each and window < context_length else 0 for each in local),
        ropes=ropes,
        layer_ropes=tuple(len(ropes) - 1 if each else 0 for each in local),
        attention_scale=fields.number(
            "attention.scale",
            1 / math.sqrt(hidden // heads if num_layers in family.share_scaled else head_dim),
        ),
        embedding_scale=math.sqrt(hidden) if family.scaled_embedding else 1.0,
    )
    fields.refuse_unread(_REMARKS)
    return config


def check_tokenizer(config: ModelConfig, num_tokens: int) -> None:
    """Raises: ModelFileError where the tokenizer has tokens that the model has no rows for."""
    if num_tokens > config.vocab_size:
        raise ModelFileError(
            f"the tokenizer has {num_tokens} tokens and the model {config.vocab_size}"
        )


def _heads(fields: Fields) -> tuple[int, int, int]:
    """Returns heads, KV heads, elements of a head."""
    heads = fields.integer("attention.head_count")
    kv_heads = fields.integer("attention.head_count_kv", heads)
    head_dim = fields.integer("attention.key_length", fields.integer("embedding_length") // heads)
    widths = {
        fields.integer("rope.dimension_count", head_dim),
        fields.integer("attention.value_length", head_dim),
    }
    if heads % kv_heads or head_dim % 2 or head_dim > MAX_HEAD_DIM or widths != {head_dim}:
        raise ModelFileError(
            f"{heads} heads over {kv_heads} KV heads of {head_dim} elements: only whole groups of "
            f"at most {MAX_HEAD_DIM} elements, with rotary positions over the whole head and "
            "values as wide, are supported"
        )
    return heads, kv_heads, head_dim


def _bounded(fields: Fields, key: str, most: int, what: str) -> int:
    value = fields.integer(key)
    if value > most:
        raise ModelFileError(
            f"{what.format(value)} is not supported; this version serves at most {most}"
        )
    return value


def _windows(fields: Fields, family: Family, num_layers: int) -> tuple[int, list[bool]]:
    """The window's length, 0 for none, and which layers have it."""
    window = fields.integer("attention.sliding_window", 0, least=0)
    key = "attention.sliding_window_pattern"
    pattern = fields.pattern(key, num_layers, family.full_every)
    if not window:
        if fields.has(key):
            raise fields.error(key, "which makes no sense without attention.sliding_window")
        return 0, [False] * num_layers
    return window, pattern


def _ropes(fields: Fields, family: Family, head_dim: int, *, has_local: bool) -> tuple[Rope, ...]:
    """The rotary frequencies of layers that see all, then of layers with a window if others."""
    whole = Rope(fields.number("rope.freq_base", 10000.0, least=1))
    whole = Rope(whole.base, _divisors(fields, whole.base, head_dim))
    if family.local_rope_base is None:
        return (whole,)
    local = Rope(fields.number("rope.freq_base_swa", family.local_rope_base, least=1))
    return (whole, local) if has_local else (whole,)


def _divisors(fields: Fields, base: float, head_dim: int) -> tuple[float, ...]:
    key = "rope.scaling.type"
    # llama.cpp's rule: a factor without a type is a linear one.
    kind = fields.text(key, "linear" if fields.has("rope.scaling.factor") else "none")
    if kind == "none":
        return ()
    if kind not in {"linear", "llama3"}:
        raise fields.error(key, "only linear and llama3 scaling of rotary positions are supported")
    factor = fields.number("rope.scaling.factor", least=1)
    if kind == "linear":
        return (factor,) * (head_dim // 2)
    return _llama3_divisors(fields, factor, base, head_dim)


def _llama3_divisors(
    fields: Fields, factor: float, base: float, head_dim: int
) -> tuple[float, ...]:
    """Long wavelengths are stretched by `factor`, short ones stay, between them it is blended."""
    low = fields.number("rope.scaling.low_freq_factor")
    high = fields.number("rope.scaling.high_freq_factor")
    original = fields.integer("rope.scaling.original_context_length")
    if low >= high:
        raise fields.error("rope.scaling.low_freq_factor", f"it should be below {high}")
    divisors = []
    for pair in range(head_dim // 2):
        periods = original * base ** (-2 * pair / head_dim) / (2 * math.pi)
        kept = min(1.0, max(0.0, (periods - low) / (high - low)))
        divisors.append(1 / (kept + (1 - kept) / factor))
    return tuple(divisors)


def _vocab_size(metadata: Mapping[str, object], fields: Fields) -> int:
    tokens = metadata.get("tokenizer.ggml.tokens")
    known = len(tokens) if isinstance(tokens, list) else None
    return fields.integer("vocab_size", known)
