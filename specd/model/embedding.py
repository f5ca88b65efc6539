"""Token ids to vectors: from a table of numbers, or from the blocks of the file as they are.

Knows no formats but these two. Invariant: both give the same bits, and a token's vector depends on
its id alone.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from specd.model.blocks import numbers, rows_of
from specd.model.gguf_file import TensorInfo


class Embedding(Protocol):
    """tokens int64 [positions] -> [positions, hidden] in the activation type."""

    bytes: int
    format: str

    def __call__(self, tokens: Tensor) -> Tensor: ...


class DenseEmbedding:
    """A table in the activation type; a tied head multiplies by the same memory."""

    def __init__(self, table: Tensor) -> None:
        self.table = table  # [vocab, hidden]
        self.bytes = table.nbytes
        self.format = "fp32" if table.dtype == torch.float32 else "bf16"

    def __call__(self, tokens: Tensor) -> Tensor:
        return self.table.index_select(0, tokens)


class BlockEmbedding:
    """Quantised rows, read when they are asked for: 20 to 90 us for 8 rows of 1,536 (measured)."""

    def __init__(self, tensor: TensorInfo, dtype: torch.dtype) -> None:
        self._rows = rows_of(tensor)
        self._dtype = dtype
        self.bytes = tensor.data.nbytes
        self.format = tensor.type_name

    def __call__(self, tokens: Tensor) -> Tensor:
        raw = self._rows[tokens.numpy()]
        return torch.from_numpy(numbers(raw, self.format)).to(self._dtype)
