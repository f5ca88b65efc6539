"""Memory that costs nothing until it is written. Knows nothing of what is kept in it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes, as torch's own allocator gives it


def untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that cost memory only where they are written; torch.zeros writes all of them at once.

    A pool is sized for the worst case, often gigabytes, and most daemons never fill it.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    raw = torch.from_numpy(np.zeros(num_bytes + _ALIGNMENT, np.uint8))
    start = -raw.data_ptr() % _ALIGNMENT
    return raw[start : start + num_bytes].view(dtype).view(shape)
