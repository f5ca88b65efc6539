"""The loader once more, comparing what it makes of each tensor with what the file says.

Every conversion is the loader's own. Weights are dropped once they are measured, so that a model
is never in memory twice. Knows nothing of files, tokens or steps.

Invariant: bytes in memory add up to what the daemon holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specd.model.arch import ModelConfig
from specd.model.blocks import Order, chunks, four_bit, numbers, rows_of
from specd.model.embedding import Embedding
from specd.model.formats import WeightFormat
from specd.model.gguf_file import TensorInfo
from specd.model.linear import Bf16Linear, Fp32Linear, Int4Linear, Linear, int4_weight
from specd.model.loader import Loader, Part
from specd.model.source import ModelSource

_DTYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}

_HEADS = ("output.weight", "token_embd.weight")  # tensors that are a linear layer as heads only
Values = Callable[[slice], Tensor]  # rows of a tensor to what they are in memory


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
    """One use of one tensor. use: embedding, norm, bias, vector, layer or head.

    format: fp32, bf16, int4, or a block type where blocks are kept and read as they are.
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

    def __init__(self, source: ModelSource, config: ModelConfig, weights: WeightFormat) -> None:
        super().__init__(source, config, weights, strict=True)  # which changes no weight
        self.conversions: list[Conversion] = []

    def embedding(self) -> tuple[Embedding, TensorInfo]:
        made, held = super().embedding()
        tensor = self.source.tensors[held.name]
        found = _deviation(tensor, None, lambda rows: made(torch.arange(rows.start, rows.stop)))
        self._keep(tensor, "embedding", made.format, made.bytes, found)
        return made, held

    def norm(self, name: str, size: int) -> Tensor:
        norm = super().norm(name, size)
        self._keep_vector(name, "norm", norm, self.norm_values(name, size))
        return norm

    def bias(self, name: str, size: int) -> Tensor:
        exact = super().vector(name, size)
        bias = exact.to(self.dtype)
        self._keep_vector(name, "bias", bias, exact)
        return bias

    def vector(self, name: str, size: int) -> Tensor:
        vector = super().vector(name, size)
        self._keep_vector(name, "vector", vector, vector)
        return vector

    def head(self, embedding: Embedding, held: TensorInfo) -> Linear:
        made = super().head(embedding, held)
        if not isinstance(made, _Measured):  # the embedding's own memory
            (known,) = (one for one in self.conversions if one.use == "embedding")
            self._keep(known.tensor, "head", known.format, 0, known.deviation)
        return made

    def _layer(self, stack: Sequence[Part]) -> Linear:
        made = super()._layer(stack)
        num_rows = sum(held.shape[0] for held, _ in stack)
        start = 0
        for held, order in stack:
            tensor = self.source.tensors[held.name]
            found = _deviation(tensor, order, self._values(made, held, order, start))
            use = "head" if held.name in _HEADS else "layer"
            num_bytes = made.bytes * held.shape[0] // num_rows
            self._keep(tensor, use, made.format, num_bytes, found)
            start += held.shape[0]
        return _Measured(made)

    def _values(self, made: Linear, held: TensorInfo, order: Order, start: int) -> Values:
        """What the layer multiplies by, for rows of one tensor that begin at row `start` of it."""
        if isinstance(made, Int4Linear):
            raw = rows_of(held) if order is None else rows_of(held)[order]
            return lambda rows: int4_weight(four_bit(raw[rows], held.type_name))
        assert isinstance(made, Fp32Linear | Bf16Linear)
        weight = made.weight()
        return lambda rows: weight[start + rows.start : start + rows.stop]

    def _keep_vector(self, name: str, use: str, made: Tensor, exact: Tensor) -> None:
        found = _difference(made, exact)
        self._keep(self.source.tensors[name], use, _DTYPE_NAMES[made.dtype], made.nbytes, found)

    def _keep(
        self, tensor: TensorInfo, use: str, format: str, num_bytes: int, found: Deviation
    ) -> None:
        is_second = any(known.tensor is tensor for known in self.conversions)
        self.conversions.append(Conversion(tensor, use, format, num_bytes, found, is_second))


def _deviation(tensor: TensorInfo, order: Order, values: Values) -> Deviation:
    """How far `values` are from the tensor's rows in `order`."""
    total = Deviation()
    for rows, raw in chunks(tensor, order):
        total += _difference(values(rows), torch.from_numpy(numbers(raw, tensor.type_name)))
    return total


def _difference(ours: Tensor, theirs: Tensor) -> Deviation:
    exact = theirs.double()
    error = ours.double() - exact
    return Deviation(
        float(error.square().sum()), float(exact.square().sum()), float(error.abs().max())
    )
