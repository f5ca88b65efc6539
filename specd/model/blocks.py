"""GGUF tensor blocks as numbers. Knows the byte layout of a block and nothing of models.

Layouts follow the GGML type definitions (ggml-quants in the GGML project): a Q4_1 block is 32
weights as fp16 scale, fp16 minimum and 16 bytes of nibbles, low nibbles first.
Invariant: `dequantise` equals the `gguf` package's own dequantisation to the bit in fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from specd.errors import ModelFileError
from specd.model.gguf_file import TensorInfo

BLOCK = 32  # weights per block of every quantised type below

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FourBit:
    """A 4-bit tensor as the file stores it: weight = scale * quant + minimum.

    quants: uint8 [rows, columns], values 0 to 15. scale, minimum: fp32 [rows, columns / 32].
    """

    quants: npt.NDArray[np.uint8]
    scale: F32
    minimum: F32


@dataclass(frozen=True, slots=True)
class EightBit:
    """A Q8_0 tensor: weight = scale * quant. quants: int8 [rows, columns]; scale as above."""

    quants: npt.NDArray[np.int8]
    scale: F32


def _blocks(tensor: TensorInfo, block_bytes: int) -> npt.NDArray[np.uint8]:
    """View the raw bytes as [rows, blocks per row, bytes per block]."""
    rows, columns = int(np.prod(tensor.shape[:-1])), tensor.shape[-1]
    return tensor.data.reshape(rows, columns // BLOCK, block_bytes)


def _half(raw: npt.NDArray[np.uint8]) -> F32:
    """Read the last axis, 2 bytes, as one fp16 number."""
    return np.ascontiguousarray(raw).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """[rows, blocks, 16] bytes -> [rows, columns] values; element j and j + 16 share byte j."""
    pairs = np.concatenate([raw & 15, raw >> 4], axis=-1)
    return pairs.reshape(raw.shape[0], -1)


def four_bit(tensor: TensorInfo) -> FourBit | None:
    """Read a 4-bit tensor without dequantising it; None if it is of another type."""
    if tensor.type_name == "Q4_1":
        raw = _blocks(tensor, 20)
        return FourBit(_nibbles(raw[..., 4:]), _half(raw[..., :2]), _half(raw[..., 2:4]))
    if tensor.type_name == "Q4_0":
        raw = _blocks(tensor, 18)
        scale = _half(raw[..., :2])
        return FourBit(_nibbles(raw[..., 2:]), scale, scale * np.float32(-8))
    return None


def eight_bit(tensor: TensorInfo) -> EightBit | None:
    """Read a Q8_0 tensor without dequantising it; None if it is of another type."""
    if tensor.type_name != "Q8_0":
        return None
    raw = _blocks(tensor, 34)
    quants = np.ascontiguousarray(raw[..., 2:]).view(np.int8)
    return EightBit(quants.reshape(raw.shape[0], -1), _half(raw[..., :2]))


def _from_four_bit(tensor: TensorInfo) -> F32:
    packed = four_bit(tensor)
    assert packed is not None
    grouped = packed.quants.reshape(*packed.scale.shape, BLOCK).astype(np.float32)
    if tensor.type_name == "Q4_0":  # the reference subtracts before it scales
        return (grouped - np.float32(8)) * packed.scale[..., None]
    return grouped * packed.scale[..., None] + packed.minimum[..., None]


def _from_eight_bit(tensor: TensorInfo) -> F32:
    packed = eight_bit(tensor)
    assert packed is not None
    grouped = packed.quants.reshape(*packed.scale.shape, BLOCK).astype(np.float32)
    return grouped * packed.scale[..., None]


def _from_bf16(tensor: TensorInfo) -> F32:
    high = tensor.data.view(np.uint16).astype(np.uint32) << np.uint32(16)
    return high.view(np.float32)


_DEQUANTISERS: Mapping[str, Callable[[TensorInfo], F32]] = {
    "F32": lambda tensor: tensor.data.view(np.float32),
    "F16": lambda tensor: tensor.data.view(np.float16).astype(np.float32),
    "BF16": _from_bf16,
    "Q4_0": _from_four_bit,
    "Q4_1": _from_four_bit,
    "Q8_0": _from_eight_bit,
}

SUPPORTED_TYPES = tuple(_DEQUANTISERS)


def dequantise(tensor: TensorInfo) -> torch.Tensor:
    """Return the tensor's weights in fp32, in its own shape.

    Raises:
        ModelFileError: the block type is not supported.
    """
    convert = _DEQUANTISERS.get(tensor.type_name)
    if convert is None:
        raise ModelFileError(
            f"tensor {tensor.name} has block type {tensor.type_name}, which is not supported; "
            f"this version reads: {', '.join(SUPPORTED_TYPES)}"
        )
    # A copy: the source is a read-only view of the mapped file.
    return torch.from_numpy(convert(tensor).reshape(tensor.shape).copy())
