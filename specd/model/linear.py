"""Linear layers in four weight formats. One kernel and one format per tensor.

Knows the widths at which a kernel's result does not depend on the number of positions, and keeps
them private: a caller passes any number of positions. Measured on the CPU by bit comparison
(torch 2.14): bf16 rows agree for every count from 2, fp32 rows for multiples of 4, int4 and int8
for every count. Invariant in strict mode: row i of the result depends on row i of the input alone.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from specd.model.blocks import BLOCK, FourBit

FP32_MULTIPLE = 4
BF16_MINIMUM = 2
INT4_ROW_MULTIPLE = 16  # torch's packed int4 layout takes whole tiles of output rows


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

    The quants are the file's own. Scale and minimum are rounded from fp16 to bf16, the only format
    that torch's kernel takes.
    """

    format = "int4"

    def __init__(self, blocks: FourBit) -> None:
        quants = torch.from_numpy(blocks.quants).to(torch.int32)
        self._packed = torch._convert_weight_to_int4pack_for_cpu(quants, 1)
        self._scale_and_zero = _scale_and_zero(blocks)
        self.bytes = self._packed.nbytes + self._scale_and_zero.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return torch._weight_int4pack_mm_for_cpu(x, self._packed, BLOCK, self._scale_and_zero)


def _scale_and_zero(blocks: FourBit) -> Tensor:
    """[groups, out, 2] bf16."""
    scale, minimum = torch.from_numpy(blocks.scale), torch.from_numpy(blocks.minimum)
    # torch computes (quant - 8) * scale + zero.
    zero = minimum + 8 * scale
    return torch.stack([scale.t(), zero.t()], -1).bfloat16().contiguous()


def int4_weight(blocks: FourBit) -> Tensor:
    """[out, in], fp32: what an `Int4Linear` of these blocks multiplies by."""
    scale, zero = _scale_and_zero(blocks).float().permute(2, 1, 0).unsqueeze(-1)
    quants = torch.from_numpy(blocks.quants).view(*blocks.scale.shape, BLOCK).float()
    weight: Tensor = (quants - 8) * scale + zero
    return weight.view(blocks.quants.shape)


class Int8Linear:
    """8-bit weights with one scale per output row, bf16 activations."""

    format = "int8"

    def __init__(self, quants: Tensor, scale: Tensor) -> None:
        self._quants = quants  # [out, in] int8
        self._scale = scale.bfloat16()  # [out]
        self.bytes = quants.nbytes + self._scale.nbytes

    @classmethod
    def from_weight(cls, weight: Tensor) -> Int8Linear:
        """Quantise fp32 rows symmetrically; a row's largest weight becomes 127."""
        # The scale is rounded first, so that the quants make up for its rounding.
        scale = (weight.abs().amax(1) / 127).clamp_min(1e-12).bfloat16()
        quants = (weight / scale.float()[:, None]).round().clamp(-127, 127).to(torch.int8)
        return cls(quants, scale)

    def __call__(self, x: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(x, self._quants, self._scale)

    def weight(self) -> Tensor:
        """[out, in], fp32."""
        return self._quants.float() * self._scale.float()[:, None]
