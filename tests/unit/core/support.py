"""Random weights for the core's tests, its linear layer by its C interface, and what to expect.

Knows how activations are quantised, in plain numpy. Invariant: expectations come from float64 and
from the `gguf` package, never from the core.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from specd.core import library
from specd.core.linear import linear_of
from specd.core.packed import Matrix, pack
from specd.model.formats import SUPPORTED_TYPES
from specd.model.gguf_file import TensorInfo
from tests.support.random_blocks import HALVES, random_tensor

ISAS = library.supported()
GROUP = 32  # activations that share a scale

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

# One source type for each packed format, fp32 and bf16 among them.
TYPE_OF = {
    "fp32": "F32", "bf16": "BF16", "q4_s": "Q4_0", "q4_m": "Q4_1", "q4_k": "Q4_K", "q5_s": "Q5_0",
    "q5_m": "Q5_1", "q5_k": "Q5_K", "q6_k": "Q6_K", "q8_s": "Q8_0", "q2_k": "Q2_K",
}  # fmt: skip
MULTIPLE = {kind: 256 if kind.endswith("_K") else 32 for kind in SUPPORTED_TYPES}


def any_blocks(type_name: str, rows: int, columns: int, seed: int) -> TensorInfo:
    """Any bits but for scales that are no numbers: denormals, negative zeros, the largest."""
    tensor = random_tensor(type_name, (rows, columns), seed)
    if places := HALVES.get(type_name, ()):
        random = np.random.default_rng(seed)
        blocks = tensor.data.reshape(-1, _block_bytes(tensor)).copy()
        for place in places:
            halves = random.integers(0, 1 << 16, len(blocks)).astype(np.uint16)
            halves[halves & 0x7C00 == 0x7C00] ^= 0x4000  # neither infinite nor NaN
            blocks[:, place : place + 2] = halves.view(np.uint8).reshape(-1, 2)
        tensor = replace(tensor, data=blocks.reshape(-1))
    return tensor


def _block_bytes(tensor: TensorInfo) -> int:
    per_block = 256 if tensor.type_name.endswith("_K") else 32
    return tensor.data.size * per_block // int(np.prod(tensor.shape))


def packed(format: str, rows: int, columns: int, seed: int = 0) -> Matrix:
    """Random weights of a usual size."""
    return pack(random_tensor(TYPE_OF[format], (rows, columns), seed), None, None, 1)


def activations(positions: int, columns: int, seed: int = 0) -> F32:
    """Normal, of a size of its own for each group, one group of zeros."""
    random = np.random.default_rng(seed)
    sizes = 10 ** random.uniform(-2, 2, (positions, columns // GROUP, 1))
    sizes[0, 0] = 0
    values = random.normal(0, 1, (positions, columns // GROUP, GROUP)) * sizes
    return values.reshape(positions, columns).astype(np.float32)


def multiply(
    matrices: Sequence[Matrix],
    x: F32,
    isa: str,
    *,
    bias: torch.Tensor | None = None,
    threads: int = 1,
    out: F32 | None = None,
) -> F32:
    """[positions, outputs] of the core; x and out may lie at any address."""
    core = library.load()
    assert core is not None and x.flags.c_contiguous and x.dtype == np.float32
    made = np.full((len(x), sum(m.rows for m in matrices)), np.nan, np.float32)
    made = made if out is None else out
    assert made.flags.c_contiguous
    linear = linear_of(matrices, bias)
    pointers = ctypes.c_void_p(x.ctypes.data), len(x), ctypes.c_void_p(made.ctypes.data)
    core.specd_linear(linear, *pointers, threads, library.ISAS[isa])
    return made


def shifted(values: F32, by: int) -> F32:
    """A copy that begins `by` bytes behind a multiple of 64."""
    raw = np.full(values.nbytes + 128, 0xFF, np.uint8)
    start = -raw.ctypes.data % 64 + by
    made = raw[start : start + values.nbytes].view(np.float32).reshape(values.shape)
    made[:] = values
    return made


def quantised(x: F32) -> F64:
    """The values of activations that are held in 8 bits, groups of 32 with an fp32 scale."""
    groups = x.reshape(len(x), -1, GROUP)
    largest = np.abs(groups).max(-1, keepdims=True)
    one = np.float32(127)
    inverse = np.divide(one, largest, where=largest > 1e-36, out=np.zeros_like(largest))
    values = np.rint(groups * inverse).astype(np.float64) * (largest / one).astype(np.float64)
    return values.reshape(x.shape)


def as_multiplied(format: str, x: F32, isa: str) -> F64:
    """The activations as the kernels of a format see them."""
    if format not in ("fp32", "bf16"):
        return quantised(x)
    if format == "bf16" and isa == "avx512-bf16":
        return torch.from_numpy(x).bfloat16().double().numpy()
    return x.astype(np.float64)


def steps(format: str, x: F32, isa: str) -> F64:
    """The most by which `as_multiplied` may be off, for each activation."""
    if format == "bf16" and isa == "avx512-bf16":
        return np.abs(x).astype(np.float64) / 256
    if format in ("fp32", "bf16"):
        return np.zeros_like(x, np.float64)
    largest = np.abs(x.reshape(len(x), -1, GROUP)).max(-1, keepdims=True).astype(np.float64)
    held = np.where(largest > 1e-36, largest / 254 * (1 + 1e-5), largest)
    return np.repeat(held, GROUP, axis=-1).reshape(x.shape)


def product(weights: F32, x: F64) -> F64:
    """x W'."""
    made: F64 = (torch.from_numpy(x) @ torch.from_numpy(weights).double().T).numpy()
    return made


def same_bits(one: F32, other: F32) -> bool:
    """Equal to the bit; any NaN equals any other."""
    return np.array_equal(np.isnan(one), np.isnan(other)) and np.array_equal(
        np.nan_to_num(one, nan=0).view(np.uint32), np.nan_to_num(other, nan=0).view(np.uint32)
    )
