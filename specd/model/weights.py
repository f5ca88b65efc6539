"""The weights of a decoder, read tensor by tensor from a model on disk.

Knows which tensors a family has and what becomes of them: order of rows, biases, norms. The format
of each linear layer is `loader.py`'s choice. Invariant: the fields hold all that a step needs, as
plain data, and every tensor of the model is in them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specd.errors import ModelFileError
from specd.model.arch import ModelConfig
from specd.model.blocks import BLOCK
from specd.model.embedding import Embedding
from specd.model.formats import WeightFormat
from specd.model.gguf_file import TensorInfo
from specd.model.linear import Linear
from specd.model.loader import Loader
from specd.model.rotary import rope_frequencies
from specd.model.source import ModelSource

Progress = Callable[[int, int], None]  # tensors done, tensors in all


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder block. Vectors are in the activation type; None where the model has none.

    Norms are [hidden], those of single heads (q_norm, k_norm) [head_dim]. qkv_bias is in the order
    of the rows of `qkv`: queries, keys, values, rotary pairs as halves.
    """

    attn_norm: Tensor
    qkv: Linear
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    attn_output: Linear
    attn_output_bias: Tensor | None
    post_attn_norm: Tensor | None
    ffn_norm: Tensor
    gate_up: Linear
    ffn_down: Linear
    post_ffn_norm: Tensor | None

    def vectors(self) -> list[Tensor]:
        """Every norm and bias."""
        values = (getattr(self, name) for name in self.__slots__)
        return [value for value in values if isinstance(value, Tensor)]


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All of a decoder.

    embedding: token ids to vectors in the activation type. rope_frequencies: radians per position,
    fp64 [ropes, head_dim / 2], of the config's `ropes`.
    """

    embedding: Embedding
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Linear
    rope_frequencies: Tensor
    dtype: torch.dtype  # of activations
    kv_dtype: torch.dtype

    def linears(self) -> list[Linear]:
        """Every linear layer, the head last."""
        inner = [
            linear
            for layer in self.layers
            for linear in (layer.qkv, layer.attn_output, layer.gate_up, layer.ffn_down)
        ]
        return [*inner, self.head]


def half_split_order(num_heads: int, head_dim: int) -> Tensor:
    """Row order that turns neighbouring rotary pairs (2i, 2i+1) into halves (i, i + dim/2)."""
    rows = torch.arange(num_heads * head_dim)
    return rows.view(num_heads, head_dim // 2, 2).transpose(1, 2).reshape(-1)


def load_weights(
    source: ModelSource,
    config: ModelConfig,
    weights: WeightFormat,
    *,
    strict: bool,
    progress: Progress = lambda done, total: None,
) -> ModelWeights:
    """Read all tensors of a decoder.

    Raises:
        ModelFileError: a tensor is missing, unknown, of the wrong shape or of an unsupported type.
    """
    return read_weights(Loader(source, config, weights, strict=strict), config, progress)


def read_weights(loader: Loader, config: ModelConfig, progress: Progress) -> ModelWeights:
    """`load_weights` with a loader of the caller's. Raises: ModelFileError as there."""
    _refuse_unknown_widths(config)
    embedding, info = loader.embedding()
    layers = []
    for index in range(config.num_layers):
        layers.append(_layer(loader, config, index))
        progress(index + 1, config.num_layers)
    weights_read = ModelWeights(
        embedding=embedding,
        layers=tuple(layers),
        final_norm=loader.norm("output_norm.weight", config.hidden_size),
        head=loader.head(embedding, info),
        rope_frequencies=_rope_frequencies(loader, config),
        dtype=loader.dtype,
        kv_dtype=loader.kv_dtype,
    )
    loader.refuse_unused()
    return weights_read


def _layer(loader: Loader, config: ModelConfig, index: int) -> LayerWeights:
    hidden, ffn, query = config.hidden_size, config.ffn_size, config.query_width
    kv, family = config.kv_width // 2, config.family

    def name(part: str) -> str:
        return f"blk.{index}.{part}"

    def tensor(part: str, *shape: int) -> TensorInfo:
        return loader.tensor(name(f"{part}.weight"), shape)

    def norm(part: str, size: int = hidden) -> Tensor:
        return loader.norm(name(f"{part}.weight"), size)

    return LayerWeights(
        attn_norm=norm("attn_norm"),
        qkv=loader.linear(
            [
                tensor("attn_q", query, hidden),
                tensor("attn_k", kv, hidden),
                tensor("attn_v", kv, hidden),
            ],
            _row_orders(loader, config),
        ),
        qkv_bias=_qkv_bias(loader, config, name),
        q_norm=norm("attn_q_norm", config.head_dim) if family.head_norms else None,
        k_norm=norm("attn_k_norm", config.head_dim) if family.head_norms else None,
        attn_output=loader.linear([tensor("attn_output", hidden, query)]),
        attn_output_bias=_output_bias(loader, name("attn_output.bias"), hidden),
        post_attn_norm=norm("post_attention_norm") if family.post_norms else None,
        ffn_norm=norm("ffn_norm"),
        gate_up=loader.linear([tensor("ffn_gate", ffn, hidden), tensor("ffn_up", ffn, hidden)]),
        ffn_down=loader.linear([tensor("ffn_down", hidden, ffn)]),
        post_ffn_norm=norm("post_ffw_norm") if family.post_norms else None,
    )


def _row_orders(loader: Loader, config: ModelConfig) -> list[Tensor | None]:
    """How rows of queries, keys and values move, so that rotary pairs are halves of a head."""
    if not (loader.source.interleaved_rope and config.family.interleaved_rope):
        return [None, None, None]
    return [
        half_split_order(config.num_heads, config.head_dim),
        half_split_order(config.num_kv_heads, config.head_dim),
        None,
    ]


def _qkv_bias(loader: Loader, config: ModelConfig, name: Callable[[str], str]) -> Tensor | None:
    sizes = {"q": config.query_width, "k": config.kv_width // 2, "v": config.kv_width // 2}
    parts = {name(f"attn_{part}.bias"): size for part, size in sizes.items()}
    if not (config.family.qkv_bias or any(map(loader.has, parts))):
        return None
    vectors = [loader.bias(part, size) for part, size in parts.items()]
    orders = _row_orders(loader, config)
    return torch.cat([
        vector if order is None else vector[order]
        for vector, order in zip(vectors, orders, strict=True)
    ])


def _output_bias(loader: Loader, name: str, size: int) -> Tensor | None:
    return loader.bias(name, size) if loader.has(name) else None


def _rope_frequencies(loader: Loader, config: ModelConfig) -> Tensor:
    name, divisors = "rope_freqs.weight", None
    # Beside scaling in the metadata the tensor stays unused, and is refused for that.
    scaled = any(rope.divisors for rope in config.ropes)
    if config.family.rope_factors and not scaled and loader.has(name):
        divisors = loader.vector(name, config.head_dim // 2)
        if not bool((divisors.isfinite() & (divisors > 0)).all()):
            raise ModelFileError(f"tensor {name} should hold positive numbers and does not")
    return rope_frequencies(config.ropes, config.head_dim, divisors)


def _refuse_unknown_widths(config: ModelConfig) -> None:
    sizes = {
        "embedding_length": config.hidden_size,
        "ffn": config.ffn_size,
        "the width of all heads": config.query_width,
    }
    for name, size in sizes.items():
        if size % BLOCK:
            raise ModelFileError(f"{name} is {size}; only multiples of {BLOCK} are supported")
