"""A linear layer and an embedding of packed weights, callable like those of the torch path.

In a step the core reads their matrices itself; calls from here serve tests and measurements.
Invariant: row i of a result depends on row i of the input alone, for any number of rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from specd.core import library
from specd.core.layouts import Linear, Part
from specd.core.packed import Matrix


class CoreLinear:
    """x fp32 [positions, in] -> fp32 [positions, out]; outputs of the matrices one by one."""

    def __init__(self, matrices: Sequence[Matrix], isa: str) -> None:
        self.matrices = tuple(matrices)
        self.bytes = sum(matrix.data.nbytes for matrix in matrices)
        self.format = "+".join(dict.fromkeys(matrix.format for matrix in matrices))
        self._isa = isa

    def __call__(self, x: Tensor) -> Tensor:
        x = x.float().contiguous()
        made = torch.empty(x.shape[0], sum(matrix.rows for matrix in self.matrices))
        library.opened().specd_linear(
            linear_of(self.matrices, None),
            x.data_ptr(),
            x.shape[0],
            made.data_ptr(),
            torch.get_num_threads(),
            library.ISAS[self._isa],
        )
        return made

    def weight(self) -> Tensor:
        """[out, in], fp32."""
        return torch.cat([torch.from_numpy(matrix.numbers()) for matrix in self.matrices])


class CoreEmbedding:
    """Token ids int64 [positions] -> fp32 [positions, hidden]; rows are unpacked when asked for."""

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix
        self.bytes = matrix.data.nbytes
        self.format = matrix.format

    def __call__(self, tokens: Tensor) -> Tensor:
        rows = [torch.from_numpy(self.matrix.numbers(int(token), 1)) for token in tokens]
        return torch.cat(rows)


def linear_of(matrices: Sequence[Matrix], bias: Tensor | None) -> Linear:
    """As the core takes it. Keeps its parts alive; matrices and bias have to outlive it."""
    parts = (Part * len(matrices))(*(matrix.part() for matrix in matrices))
    return Linear(
        matrices[0].columns,
        len(matrices),
        ctypes.cast(parts, ctypes.POINTER(Part)),
        None if bias is None else bias.data_ptr(),
    )
