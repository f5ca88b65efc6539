"""Looks up a model's tensors and builds layers from them in the format that the operator chose.

Knows shapes and which kernel each tensor gets; what a choice means is `formats.py`, the bytes are
`blocks.py`, the kernels `linear.py`. Tensors are read a chunk at a time, so that little more is in
memory than what is kept.
Invariant: a tensor's format depends on the tensor and on the chosen weights alone, never on how
many positions a step has.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specd.errors import ModelFileError
from specd.model.arch import ModelConfig
from specd.model.blocks import (
    Order,
    chunks,
    dequantise,
    fill,
    four_bit,
    kept,
    requantise,
    rows_of,
)
from specd.model.embedding import BlockEmbedding, DenseEmbedding, Embedding
from specd.model.formats import FLOAT_TYPES, TORCH_FORMATS, WeightFormat, held_type
from specd.model.gguf_file import TensorInfo
from specd.model.linear import (
    INT4_ROW_MULTIPLE,
    INT4_TILE,
    Bf16Linear,
    Fp32Linear,
    Int4Linear,
    Linear,
    SplitLinear,
)
from specd.model.source import ModelSource

Part = tuple[TensorInfo, Order]  # a tensor as it is held, and the order of its rows


class Loader:
    """Builds layers from one source in one format.

    dtype, kv_dtype: of activations, and of keys and values.
    """

    def __init__(
        self, source: ModelSource, config: ModelConfig, weights: WeightFormat, *, strict: bool
    ) -> None:
        self.source = source
        self._config = config
        self._weights = weights
        self._strict = strict
        self._used: set[str] = set()
        self.dtype = torch.float32 if weights == "fp32" else torch.bfloat16
        self.kv_dtype = self.dtype

    def tensor(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """Look a tensor up and check its shape."""
        tensor = self.source.tensors.get(name)
        if tensor is None:
            raise ModelFileError(f"the model file has no tensor {name}")
        if tensor.shape != shape:
            raise ModelFileError(f"tensor {name} is {tensor.shape} and should be {shape}")
        self._used.add(name)
        return tensor

    def has(self, name: str) -> bool:
        return name in self.source.tensors

    def refuse_unused(self) -> None:
        """A tensor that nobody read (a bias, rotary factors) would change the model's output."""
        if unused := sorted(self.source.tensors.keys() - self._used):
            raise ModelFileError(
                f"the model file has tensors this version does not use: {', '.join(unused[:5])}"
            )

    def embedding(self) -> tuple[Embedding, TensorInfo]:
        """The embedding, and the tensor it is held as."""
        tensor = self.tensor("token_embd.weight", self._table_shape)
        held = self.held(tensor)
        shared = self._is_tied and self._format(held) != "int4"
        if shared or held.type_name in FLOAT_TYPES:
            return DenseEmbedding(self._dense([(held, None)])), held
        return BlockEmbedding(kept(held) if held is tensor else held, self.dtype), held

    def norm(self, name: str, size: int) -> Tensor:
        """What a norm multiplies by, [size] in the activation type."""
        return self.norm_values(name, size).to(self.dtype)

    def norm_values(self, name: str, size: int) -> Tensor:
        """`norm` in fp32, the family's offset added where the source lacks it."""
        offset = self._config.family.norm_offset if self.source.norms_lack_offset else 0
        return dequantise(self.tensor(name, (size,))) + offset

    def bias(self, name: str, size: int) -> Tensor:
        """What a linear layer adds, [size] in the activation type."""
        return self.vector(name, size).to(self.dtype)

    def vector(self, name: str, size: int) -> Tensor:
        """Any other tensor of one dimension, [size] in fp32."""
        return dequantise(self.tensor(name, (size,)))

    def linear(
        self, tensors: Sequence[TensorInfo], orders: Sequence[Tensor | None] | None = None
    ) -> Linear:
        """Stack tensors along their rows into one layer; `orders` rearranges rows of a part.

        Neighbours of one format are one kernel call; others are side by side in a `SplitLinear`.
        """
        orders = orders or [None] * len(tensors)
        parts: list[Linear] = []
        stack: list[Part] = []
        for tensor, order in zip(map(self.held, tensors), orders, strict=True):
            if stack and not self._fits(stack, tensor):
                parts.append(self._layer(stack))
                stack = []
            stack.append((tensor, None if order is None else order.numpy()))
        parts.append(self._layer(stack))
        return parts[0] if len(parts) == 1 else SplitLinear(parts)

    def head(self, embedding: Embedding, held: TensorInfo) -> Linear:
        """The output projection: its own tensor, or the embedding where the two are tied."""
        if not self._is_tied:
            return self.linear([self.tensor("output.weight", self._table_shape)])
        if isinstance(embedding, DenseEmbedding):
            return self._from_dense(embedding.table)
        return self.linear([held])

    def held(self, tensor: TensorInfo) -> TensorInfo:
        """The tensor in the blocks that it is held in: the file's own, or new ones.

        A tensor that is held in full is returned as the file has it.

        Raises: ModelFileError where its block type is not supported, or its weights are too large.
        """
        rows_of(tensor)
        wanted = held_type(tensor.type_name, self._weights)
        if wanted in FLOAT_TYPES or wanted == tensor.type_name:
            return tensor
        return requantise(tensor, wanted)

    @property
    def _is_tied(self) -> bool:
        return not self.has("output.weight")

    @property
    def _table_shape(self) -> tuple[int, int]:
        return self._config.vocab_size, self._config.hidden_size

    def _format(self, held: TensorInfo) -> str:
        """The kernel that a held tensor gets: fp32, bf16 or int4."""
        format = TORCH_FORMATS[held_type(held.type_name, self._weights)]
        # Rows that torch's packed layout cannot take keep their precision.
        is_taken = format != "int4" or held.shape[0] % INT4_ROW_MULTIPLE == 0
        return format if is_taken else "bf16"

    def _fits(self, stack: Sequence[Part], held: TensorInfo) -> bool:
        """Whether one kernel call can take `held` below the tensors of `stack`."""
        format = self._format(held)
        num_rows = sum(part.shape[0] for part, _ in stack)
        return format == self._format(stack[0][0]) and (
            format != "int4" or num_rows % INT4_TILE == 0
        )

    def _layer(self, stack: Sequence[Part]) -> Linear:
        if self._format(stack[0][0]) != "int4":
            return self._from_dense(self._dense(stack))
        shape = sum(part.shape[0] for part, _ in stack), stack[0][0].shape[1]
        return Int4Linear(
            shape,
            (
                four_bit(raw, held.type_name)
                for held, order in stack
                for _, raw in chunks(held, order, INT4_TILE)
            ),
        )

    def _dense(self, stack: Sequence[Part]) -> Tensor:
        """The tensors of a stack as one of numbers, [rows, columns] in the activation type."""
        num_rows = sum(part.shape[0] for part, _ in stack)
        made = torch.empty(num_rows, stack[0][0].shape[1], dtype=self.dtype)
        start = 0
        for held, order in stack:
            fill(made[start : start + held.shape[0]], held, order)
            start += held.shape[0]
        return made

    def _from_dense(self, weight: Tensor) -> Linear:
        kind = Fp32Linear if self.dtype == torch.float32 else Bf16Linear
        return kind(weight, strict=self._strict)
