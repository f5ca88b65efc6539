"""Matrices in the core's packed form: packed from a tensor's blocks, and read back as numbers.

Knows block types and packed formats by their names; nothing of layers. Every block type has a form
that keeps all of its bits; fp32 and bf16 are made of any. Invariant: a matrix's memory is its own,
independent of any file.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
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
# What is in memory twice while it is packed.
_PIECE_BYTES = 1 << 25


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
        library.opened().specd_unpack(
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
    exact = FORMATS[library.check(library.opened().specd_exact_format(source))]
    rows, columns = tensor.shape
    matrix = _empty(wanted or exact, rows, columns)
    for first, count in _pieces(rows, len(raw[0]), columns):
        piece = slice(first, first + count)
        chosen = raw[piece] if order is None else raw[order[piece]]
        if matrix.format == exact or exact in (FP32, BF16):
            _pack(source, chosen, matrix, first, num_threads)
        else:
            passing = _empty(exact, count, columns)
            _pack(source, chosen, passing, 0, num_threads)
            _pack(_F32, passing.numbers().view(np.uint8), matrix, first, num_threads)
        if order is None:
            give_back(raw[piece])
    give_back(raw)
    return matrix


def _pieces(rows: int, row_bytes: int, columns: int) -> Iterator[tuple[int, int]]:
    """(first row, rows) of pieces that are whole blocks of 16 rows but for the last."""
    step = max(1, _PIECE_BYTES // (max(row_bytes, 4 * columns) * LANES)) * LANES
    yield from ((first, min(step, rows - first)) for first in range(0, rows, step))


def _empty(format: str, rows: int, columns: int) -> Matrix:
    size = library.check(library.opened().specd_packed_bytes(FORMATS.index(format), rows, columns))
    return Matrix(format, rows, columns, memory(size))


def _pack(source: int, raw: U8, to: Matrix, first: int, num_threads: int) -> None:
    """Pack rows [rows, bytes] to where row `first` of a matrix begins; a multiple of 16."""
    format = FORMATS.index(to.format)
    before = library.check(library.opened().specd_packed_bytes(format, first, to.columns))
    raw = np.ascontiguousarray(raw)
    library.check(
        library.opened().specd_pack(
            source,
            format,
            raw.ctypes.data,
            len(raw),
            to.columns,
            to.data[before:].ctypes.data,
            num_threads,
        )
    )


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
