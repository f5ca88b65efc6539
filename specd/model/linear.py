"""Linear layers in three weight formats. One kernel and one format per tensor.

Knows the widths at which a kernel's result does not depend on the number of positions, and keeps
them private: a caller passes any number of positions. Measured on the CPU by bit comparison
(torch 2.14): bf16 rows agree for every count from 2, fp32 rows for multiples of 4, int4 for every
count. Invariant in strict mode: row i of the result depends on row i of the input alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from specd.model.blocks import BLOCK, FourBit

FP32_MULTIPLE = 4
BF16_MINIMUM = 2
INT4_ROW_MULTIPLE = 16  # torch's packed int4 layout takes no other number of output rows
INT4_TILE = 64  # rows that the layout interleaves, at most: 64 with AVX-512, 32 with AVX2


class Linear(Protocol):
    """x [positions, in] -> [positions, out]. `bytes` is what a step reads of it."""

    bytes: int
    format: str

    def __call__(self, x: Tensor) -> Tensor: ...


class Fp32Linear:
    """Full precision; pads to a multiple of 4 positions."""

    format = "fp32"

    def __init__(self, weight: Tensor, *, strict: bool) -> None:
        self._weight = weight  # [out, in] fp32
        self._multiple = FP32_MULTIPLE if strict else 1
        self.bytes = weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        missing = -x.shape[0] % self._multiple
        if not missing:
            return functional.linear(x, self._weight)
        return functional.linear(functional.pad(x, (0, 0, 0, missing)), self._weight)[: x.shape[0]]

    def weight(self) -> Tensor:
        """[out, in], fp32."""
        return self._weight


class Bf16Linear:
    """bfloat16 weights and activations; one position runs as two."""

    format = "bf16"

    def __init__(self, weight: Tensor, *, strict: bool) -> None:
        self._weight = weight  # [out, in] bf16
        self._minimum = BF16_MINIMUM if strict else 1
        self.bytes = weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        if x.shape[0] >= self._minimum:
            return functional.linear(x, self._weight)
        return functional.linear(x.expand(self._minimum, -1), self._weight)[:1]

    def weight(self) -> Tensor:
        """[out, in], bf16."""
        return self._weight


class Int4Linear:
    """4-bit weights in groups of 32 with their own scale and minimum, bf16 activations.

    The quants are the file's own. Scale and zero point are rounded to bf16, the only format that
    torch's kernel takes.
    """

    format = "int4"

    def __init__(self, shape: tuple[int, int], chunks: Iterable[FourBit]) -> None:
        """chunks: the rows in order; all but the last are whole tiles of `INT4_TILE` rows."""
        num_rows, columns = shape
        self._packed = torch.empty(num_rows, columns // 2, dtype=torch.uint8)
        self._scale_and_zero = torch.empty(columns // BLOCK, num_rows, 2, dtype=torch.bfloat16)
        self.bytes = self._packed.nbytes + self._scale_and_zero.nbytes
        start = 0
        for blocks in chunks:
            assert start % INT4_TILE == 0
            rows = slice(start, start + len(blocks.quants))
            quants = torch.from_numpy(blocks.quants.astype(np.int32))
            self._packed[rows] = torch._convert_weight_to_int4pack_for_cpu(quants, 1)
            self._scale_and_zero[:, rows] = _scale_and_zero(blocks)
            start = rows.stop
        assert start == num_rows

    def __call__(self, x: Tensor) -> Tensor:
        return torch._weight_int4pack_mm_for_cpu(x, self._packed, BLOCK, self._scale_and_zero)


def _scale_and_zero(blocks: FourBit) -> Tensor:
    """[groups, out, 2] bf16."""
    scale, minimum = torch.from_numpy(blocks.scale), torch.from_numpy(blocks.minimum)
    # torch computes (quant - 8) * scale + zero.
    zero = minimum + 8 * scale
    return torch.stack([scale.t(), zero.t()], -1).bfloat16()


def int4_weight(blocks: FourBit) -> Tensor:
    """[out, in], fp32: what an `Int4Linear` of these blocks multiplies by."""
    scale, zero = _scale_and_zero(blocks).float().permute(2, 1, 0).unsqueeze(-1)
    quants = torch.from_numpy(blocks.quants).view(*blocks.scale.shape, BLOCK).float()
    weight: Tensor = (quants - 8) * scale + zero
    return weight.view(blocks.quants.shape)


class SplitLinear:
    """Layers side by side: each part's rows in their own format, results in the parts' order."""

    def __init__(self, parts: Sequence[Linear]) -> None:
        self.parts = tuple(parts)
        self.bytes = sum(part.bytes for part in parts)
        self.format = "+".join(dict.fromkeys(part.format for part in parts))

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], -1)
