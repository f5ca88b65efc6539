"""Turns the tensors of a GGUF file into layers in the weight format that the operator chose.

Knows which tensors a decoder needs and which format each gets; the bytes are `blocks.py`, the
kernels `linear.py`. Invariant: a tensor's format depends on the tensor and on the chosen weights
alone, never on how many positions a step has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specd.errors import ModelFileError
from specd.model.arch import ModelConfig
from specd.model.blocks import BLOCK, FourBit, dequantise, four_bit
from specd.model.formats import WeightFormat
from specd.model.gguf_file import GGUFFile, TensorInfo
from specd.model.linear import (
    INT4_ROW_MULTIPLE,
    Bf16Linear,
    Fp32Linear,
    Int4Linear,
    Int8Linear,
    Linear,
)

Progress = Callable[[int, int], None]  # tensors done, tensors in all


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder block. Norms are [hidden] in the activation type."""

    attn_norm: Tensor
    qkv: Linear
    attn_output: Linear
    ffn_norm: Tensor
    gate_up: Linear
    ffn_down: Linear


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All of a decoder. embedding: [vocab, hidden] in the activation type."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Linear
    dtype: torch.dtype  # of activations and KV

    def linears(self) -> list[Linear]:
        """Every linear layer, the head last."""
        inner = [
            linear
            for layer in self.layers
            for linear in (layer.qkv, layer.attn_output, layer.gate_up, layer.ffn_down)
        ]
        return [*inner, self.head]


class Loader:
    """Builds layers from one file in one format. dtype: of activations and KV."""

    def __init__(
        self, file: GGUFFile, config: ModelConfig, weights: WeightFormat, *, strict: bool
    ) -> None:
        self._file = file
        self._config = config
        self._weights = weights
        self._strict = strict
        self._used: set[str] = set()
        self.dtype = torch.float32 if weights == "fp32" else torch.bfloat16

    def tensor(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """Look a tensor up and check its shape."""
        tensor = self._file.tensors.get(name)
        if tensor is None:
            raise ModelFileError(f"the model file has no tensor {name}")
        if tensor.shape != shape:
            raise ModelFileError(f"tensor {name} is {tensor.shape} and should be {shape}")
        self._used.add(name)
        return tensor

    def refuse_unused(self) -> None:
        """A tensor that nobody read (a bias, rotary factors) would change the model's output."""
        if unused := sorted(self._file.tensors.keys() - self._used):
            raise ModelFileError(
                f"the model file has tensors this version does not use: {', '.join(unused[:5])}"
            )

    def embedding(self) -> tuple[Tensor, TensorInfo]:
        """The embedding in the activation type, and the tensor it comes from."""
        shape = (self._config.vocab_size, self._config.hidden_size)
        info = self.tensor("token_embd.weight", shape)
        return dequantise(info).to(self.dtype), info

    def norm(self, name: str) -> Tensor:
        return dequantise(self.tensor(name, (self._config.hidden_size,))).to(self.dtype)

    def linear(
        self, tensors: Sequence[TensorInfo], orders: Sequence[Tensor | None] | None = None
    ) -> Linear:
        """Stack tensors along their rows into one layer; `orders` rearranges rows of a part."""
        orders = orders or [None] * len(tensors)
        if self._weights == "int4":
            packed = [four_bit(tensor) for tensor in tensors]
            blocks = [part for part in packed if part is not None]
            if len(blocks) == len(tensors):
                joined = _stack_blocks(blocks, orders)
                if joined.quants.shape[0] % INT4_ROW_MULTIPLE == 0:
                    return Int4Linear(joined)
        return self._from_fp32(_stack(tensors, orders))

    def _from_fp32(self, weight: Tensor) -> Linear:
        if self._weights == "fp32":
            return Fp32Linear(weight, strict=self._strict)
        return Bf16Linear(weight.bfloat16(), strict=self._strict)

    def head(self, embedding: Tensor, embedding_info: TensorInfo) -> Linear:
        """The output projection: its own tensor, or the embedding where the two are tied."""
        shape = (self._config.vocab_size, self._config.hidden_size)
        tied = "output.weight" not in self._file.tensors
        info = embedding_info if tied else self.tensor("output.weight", shape)
        if self._weights == "int4":
            # bf16 would take 1.8 ms of a step of 8 at 49,152 x 576, 8 bits take 0.7.
            eight_bit = info.type_name == "Q8_0"
            return Int8Linear.from_weight(dequantise(info)) if eight_bit else self.linear([info])
        return self._from_fp32(embedding if tied else dequantise(info))


def _stack(tensors: Sequence[TensorInfo], orders: Sequence[Tensor | None]) -> Tensor:
    parts = [
        dequantise(tensor) if order is None else dequantise(tensor)[order]
        for tensor, order in zip(tensors, orders, strict=True)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _stack_blocks(parts: Sequence[FourBit], orders: Sequence[Tensor | None]) -> FourBit:
    ordered = []
    for part, order in zip(parts, orders, strict=True):
        rows = slice(None) if order is None else order.numpy()
        ordered.append((part.quants[rows], part.scale[rows], part.minimum[rows]))
    quants, scale, minimum = (np.concatenate(arrays) for arrays in zip(*ordered, strict=True))
    return FourBit(quants, scale, minimum)


def half_split_order(num_heads: int, head_dim: int) -> Tensor:
    """Row order that turns neighbouring rotary pairs (2i, 2i+1) into halves (i, i + dim/2)."""
    rows = torch.arange(num_heads * head_dim)
    return rows.view(num_heads, head_dim // 2, 2).transpose(1, 2).reshape(-1)


def load_weights(
    file: GGUFFile,
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
    return read_weights(Loader(file, config, weights, strict=strict), config, progress)


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
        final_norm=loader.norm("output_norm.weight"),
        head=loader.head(embedding, info),
        dtype=loader.dtype,
    )
    loader.refuse_unused()
    return weights_read


def _layer(loader: Loader, config: ModelConfig, index: int) -> LayerWeights:
    hidden, ffn = config.hidden_size, config.ffn_size
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def tensor(name: str, *shape: int) -> TensorInfo:
        return loader.tensor(f"blk.{index}.{name}.weight", shape)

    def rotary_order(num_heads: int) -> Tensor | None:
        if not config.family.interleaved_rope:
            return None
        return half_split_order(num_heads, config.head_dim)

    return LayerWeights(
        attn_norm=loader.norm(f"blk.{index}.attn_norm.weight"),
        qkv=loader.linear(
            [
                tensor("attn_q", query, hidden),
                tensor("attn_k", kv, hidden),
                tensor("attn_v", kv, hidden),
            ],
            [rotary_order(config.num_heads), rotary_order(config.num_kv_heads), None],
        ),
        attn_output=loader.linear([tensor("attn_output", hidden, query)]),
        ffn_norm=loader.norm(f"blk.{index}.ffn_norm.weight"),
        gate_up=loader.linear([tensor("ffn_gate", ffn, hidden), tensor("ffn_up", ffn, hidden)]),
        ffn_down=loader.linear([tensor("ffn_down", hidden, ffn)]),
    )


def _refuse_unknown_widths(config: ModelConfig) -> None:
    for name, size in (("embedding_length", config.hidden_size), ("ffn", config.ffn_size)):
        if size % BLOCK:
            raise ModelFileError(f"{name} is {size}; only multiples of {BLOCK} are supported")
