"""Builds layers of packed weights: every tensor in the blocks that the choice of weights holds.

Knows what `specd/model/loader.py` knows, and the packed forms. Unlike on the torch path no block
type is widened: all quantised types are multiplied as they are. Activations are fp32 between the
layers, keys and values fp16 (fp32 with fp32 weights).
Invariant: a tensor's format depends on the tensor and on the chosen weights alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specd.core.linear import CoreEmbedding, CoreLinear
from specd.core.packed import BF16, FP32, pack
from specd.model.arch import ModelConfig
from specd.model.embedding import Embedding
from specd.model.formats import FLOAT_TYPES, WeightFormat
from specd.model.gguf_file import TensorInfo
from specd.model.linear import Linear
from specd.model.loader import Loader, Part
from specd.model.source import ModelSource

# What the core's vectors and working memory ask for.
HEAD_MULTIPLE, MAX_HEAD_DIM = 16, 512


def refusal(config: ModelConfig) -> str | None:
    """Why the core cannot run a model; None where it can."""
    if config.head_dim % HEAD_MULTIPLE or config.head_dim > MAX_HEAD_DIM:
        return (
            f"heads of {config.head_dim} elements; the core takes multiples of {HEAD_MULTIPLE} "
            f"up to {MAX_HEAD_DIM}"
        )
    return None


class CoreLoader(Loader):
    """A `Loader` whose layers are `CoreLinear`."""

    def __init__(
        self,
        source: ModelSource,
        config: ModelConfig,
        weights: WeightFormat,
        *,
        isa: str,
    ) -> None:
        super().__init__(source, config, weights, strict=True)
        self.dtype = torch.float32
        self.kv_dtype = torch.float32 if weights == FP32 else torch.float16
        self._isa = isa

    def embedding(self) -> tuple[Embedding, TensorInfo]:
        held = self.held(self.tensor("token_embd.weight", self._table_shape))
        return CoreEmbedding(pack(held, self._wanted(held), None, torch.get_num_threads())), held

    def head(self, embedding: Embedding, held: TensorInfo) -> Linear:
        if not self._is_tied:
            return super().head(embedding, held)
        assert isinstance(embedding, CoreEmbedding)
        return CoreLinear([embedding.matrix], self._isa)

    def _fits(self, stack: Sequence[Part], held: TensorInfo) -> bool:
        return False  # each tensor is a matrix of its own

    def _layer(self, stack: Sequence[Part]) -> Linear:
        ((held, order),) = stack
        matrix = pack(held, self._wanted(held), order, torch.get_num_threads())
        return CoreLinear([matrix], self._isa)

    def _wanted(self, held: TensorInfo) -> str | None:
        if self._weights in (FP32, BF16):
            return self._weights
        return BF16 if held.type_name in FLOAT_TYPES else None
