"""The loader once more, comparing what it makes of each tensor with what the file says.

Every conversion is the loader's own. Weights are dropped once they are measured, so that a model
is never in memory twice. Knows nothing of files, tokens or steps.

Invariant: bytes in memory add up to what the daemon holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specd.model.arch import ModelConfig
from specd.model.blocks import dequantise, four_bit
from specd.model.formats import WeightFormat
from specd.model.gguf_file import GGUFFile, TensorInfo
from specd.model.linear import (
    Bf16Linear,
    Fp32Linear,
    Int4Linear,
    Int8Linear,
    Linear,
    int4_weight,
)
from specd.model.weights import Loader

# Differences are summed in fp64, so many elements at a time.
_ERROR_CHUNK = 1 << 22
_DTYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


@dataclass(frozen=True, slots=True)
class Deviation:
    """How far values in memory are from those of the file; sums of squares, and the largest."""

    squared_error: float = 0.0
    squared_value: float = 0.0
    max_abs: float = 0.0

    @property
    def relative_rms(self) -> float:
        """0 if and only if all values are the file's own. NaN where the file has NaN."""
        if self.squared_error == 0:
            return 0.0
        return (
            math.sqrt(self.squared_error / self.squared_value) if self.squared_value else math.inf
        )

    def __add__(self, other: Deviation) -> Deviation:
        largest = [self.max_abs, other.max_abs]
        return Deviation(
            self.squared_error + other.squared_error,
            self.squared_value + other.squared_value,
            math.nan if any(map(math.isnan, largest)) else max(largest),
        )


@dataclass(frozen=True, slots=True)
class Conversion:
    """One use of one tensor. use: embedding, norm, layer or head.

    is_second: the file's bytes are those of another use; a tied head is the embedding once more.
    """

    tensor: TensorInfo
    use: str
    format: str
    memory_bytes: int
    deviation: Deviation
    is_second: bool


class _Measured:
    """A linear layer whose weights were looked at and dropped."""

    def __init__(self, linear: Linear) -> None:
        self.bytes = linear.bytes
        self.format = linear.format

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError("its weights are gone")


class MeasuringLoader(Loader):
    """`conversions`: every use of every tensor, in the order of loading."""

    def __init__(
        self, file: GGUFFile, config: ModelConfig, weights: WeightFormat, *, strict: bool
    ) -> None:
        super().__init__(file, config, weights, strict=strict)
        self.conversions: list[Conversion] = []
        self._use = "layer"
        self._embedding: Tensor | None = None

    def embedding(self) -> tuple[Tensor, TensorInfo]:
        self._embedding, info = super().embedding()
        self._keep(info, "embedding", self._embedding, dequantise(info))
        return self._embedding, info

    def norm(self, name: str) -> Tensor:
        vector = super().norm(name)
        info = self._file.tensors[name]
        self._keep(info, "norm", vector, dequantise(info))
        return vector

    def linear(
        self, tensors: Sequence[TensorInfo], orders: Sequence[Tensor | None] | None = None
    ) -> Linear:
        made = super().linear(tensors, orders)
        return self._measured(made, tensors, orders or [None] * len(tensors))

    def head(self, embedding: Tensor, embedding_info: TensorInfo) -> Linear:
        self._use = "head"
        made = super().head(embedding, embedding_info)
        if isinstance(made, _Measured):
            return made
        info = self._file.tensors.get("output.weight", embedding_info)
        return self._measured(made, [info], [None])

    def _measured(
        self, made: Linear, tensors: Sequence[TensorInfo], orders: Sequence[Tensor | None]
    ) -> Linear:
        """Compare a layer with the tensors that are stacked in it."""
        num_rows = sum(tensor.shape[0] for tensor in tensors)
        start = 0
        for tensor, order in zip(tensors, orders, strict=True):
            end = start + tensor.shape[0]
            values, original = _values(made, tensor, slice(start, end)), dequantise(tensor)
            if order is not None and not isinstance(made, Int4Linear):
                original = original[order]
            num_bytes = made.bytes * tensor.shape[0] // num_rows
            self._keep(tensor, self._use, values, original, made.format, num_bytes)
            start = end
        return _Measured(made)

    def _keep(
        self,
        tensor: TensorInfo,
        use: str,
        values: Tensor,
        original: Tensor,
        format: str = "",
        num_bytes: int | None = None,
    ) -> None:
        is_embedding = (
            self._embedding is not None and values.data_ptr() == self._embedding.data_ptr()
        )
        self.conversions.append(
            Conversion(
                tensor=tensor,
                use=use,
                format=format or _DTYPE_NAMES[values.dtype],
                # A head that is the embedding itself takes no memory of its own.
                memory_bytes=0
                if is_embedding and use == "head"
                else values.nbytes
                if num_bytes is None
                else num_bytes,
                deviation=_deviation(values, original),
                is_second=any(known.tensor is tensor for known in self.conversions),
            )
        )


def _values(made: Linear, tensor: TensorInfo, rows: slice) -> Tensor:
    """What the layer multiplies by, for the rows of one tensor; int4 in the file's own order."""
    if isinstance(made, Int4Linear):
        blocks = four_bit(tensor)
        assert blocks is not None
        return int4_weight(blocks)
    assert isinstance(made, Fp32Linear | Bf16Linear | Int8Linear)
    return made.weight()[rows]


def _deviation(values: Tensor, original: Tensor) -> Deviation:
    total = Deviation()
    pairs = zip(
        torch.split(values.reshape(-1), _ERROR_CHUNK),
        torch.split(original.reshape(-1), _ERROR_CHUNK),
        strict=True,
    )
    for ours, theirs in pairs:
        exact = theirs.double()
        error = ours.double() - exact
        total += Deviation(
            float(error.square().sum()), float(exact.square().sum()), float(error.abs().max())
        )
    return total
