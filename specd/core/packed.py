"""Matrices in the core's packed form: packed from a tensor's blocks, and read back as numbers.

Knows block types and packed formats by their names; nothing of layers. Every block type has a form
that keeps all of its bits; fp32 and bf16 are made of any. Invariant: a matrix's memory is its own,
independent of any file.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from specd.core import library
from specd.core.layouts import LANES, Part
from specd.model.blocks import F32, U8, Order, give_back, rows_of
from specd.model.gguf_file import TensorInfo

FP32, BF16 = "fp32", "bf16"
# Names of the packed formats, by their numbers in core.h.
FORMATS = (FP32, BF16, "q4_s", "q4_m", "q4_k", "q5_s", "q5_m", "q5_k", "q6_k", "q8_s", "q2_k")

_F32 = int(GGMLQuantizationType.F32)
_HUGE_PAGE = 1 << 21
# Rows that are numbers for a moment, between blocks and another format.
_PASSING_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Matrix:
    """rows x columns in a packed format. data: flat uint8, rows padded to a multiple of 16."""

    format: str
    rows: int
    columns: int
    data: U8

    def part(self) -> Part:
        """As the core takes it; `data` has to outlive it."""
        return Part(FORMATS.index(self.format), 0, self.rows, self.data.ctypes.data)

    def numbers(self, first: int = 0, count: int | None = None) -> F32:
        """fp32 [count, columns], from row `first` on."""
        made = np.empty((self.rows - first if count is None else count, self.columns), np.float32)
        _core().specd_unpack(
            FORMATS.index(self.format),
            self.data.ctypes.data,
            self.columns,
            first,
            len(made),
            made.ctypes.data,
            1,
        )
        return made


def pack(tensor: TensorInfo, wanted: str | None, order: Order, num_threads: int) -> Matrix:
    """Bring a tensor of two dimensions into packed form.

    Args:
        wanted: fp32 or bf16, or None for the form that keeps the tensor's own blocks.
        order: row i of the matrix is row order[i] of the tensor; None: the tensor's own.

    Raises: ModelFileError where the block type is not supported.
    """
    raw = rows_of(tensor)
    source = int(GGMLQuantizationType[tensor.type_name])
    number = library.check(_core().specd_exact_format(source))
    exact = FORMATS[number]
    rows, columns = tensor.shape
    order = None if order is None else np.ascontiguousarray(order, np.int64)
    target = wanted or exact
    if target == exact or exact in (FP32, BF16):
        made = _pack(source, target, raw, rows, columns, order, num_threads)
    else:
        made = _through_numbers(source, exact, target, raw, (rows, columns), order, num_threads)
    give_back(raw)
    return made


def _pack(
    source: int,
    target: str,
    raw: U8,
    rows: int,
    columns: int,
    order: npt.NDArray[np.int64] | None,
    num_threads: int,
    into: U8 | None = None,
) -> Matrix:
    format = FORMATS.index(target)
    size = library.check(_core().specd_packed_bytes(format, rows, columns))
    data = memory(size) if into is None else into
    library.check(
        _core().specd_pack(
            source,
            format,
            raw.ctypes.data,
            rows,
            columns,
            None if order is None else order.ctypes.data,
            data.ctypes.data,
            num_threads,
        )
    )
    return Matrix(target, rows, columns, data)


def _through_numbers(
    source: int,
    exact: str,
    target: str,
    raw: U8,
    shape: tuple[int, int],
    order: npt.NDArray[np.int64] | None,
    num_threads: int,
) -> Matrix:
    """Blocks to fp32 or bf16, some rows at a time."""
    rows, columns = shape
    block = library.check(_core().specd_packed_bytes(FORMATS.index(target), LANES, columns))
    data = memory(-(-rows // LANES) * block)
    step = max(1, _PASSING_BYTES // (4 * columns * LANES)) * LANES
    for first in range(0, rows, step):
        count = min(step, rows - first)
        chosen = np.arange(first, first + count) if order is None else order[first : first + count]
        passing = _pack(source, exact, raw, count, columns, chosen, num_threads).numbers()
        into = data[first // LANES * block :]
        _pack(
            _F32,
            target,
            passing.reshape(-1).view(np.uint8),
            count,
            columns,
            None,
            num_threads,
            into,
        )
    return Matrix(target, rows, columns, data)


def memory(num_bytes: int) -> U8:
    """Zeroed bytes in large pages where the system has them: a step reads all weights once."""
    if num_bytes < _HUGE_PAGE:
        whole = np.zeros(num_bytes + 64, np.uint8)
        start = -whole.ctypes.data % 64
        return whole[start : start + num_bytes]
    # Shared memory, which is mmap's default, has large pages on few systems.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    mapped = mmap.mmap(-1, num_bytes + _HUGE_PAGE, flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(mapped, np.uint8)
    start = -whole.ctypes.data % _HUGE_PAGE
    return whole[start : start + num_bytes]


def _core() -> ctypes.CDLL:
    core = library.load()
    assert core is not None, "whoever packs has asked for the core"
    return core
