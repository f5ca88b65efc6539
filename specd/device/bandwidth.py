"""How fast this machine reads memory: the bound of plain decoding, which reads all weights a step.

Knows torch's threads and the size of the caches; nothing of models.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

MEASURE_S = 0.5
# A virtual machine is often told of less cache than its host shares with it.
MIN_BUFFER_BYTES = 1 << 30
CACHES = 8
_CACHE_SIZES = "devices/system/cpu/cpu0/cache/index*/size"
# Short pieces, so that a busy machine leaves some of them alone.
PIECE_BYTES = 1 << 25
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The fastest of many reads of a buffer that no cache holds: neighbours only slow them down.

    num_threads: those of the fastest read.
    """

    bytes_per_s: float
    num_threads: int
    buffer_bytes: int


def read_bandwidth(duration_s: float = MEASURE_S) -> Bandwidth:
    """Read a large buffer for about `duration_s`, with all of torch's threads and with one.

    On a busy machine threads wait for each other, and one alone is faster.
    """
    buffer = torch.ones(_buffer_bytes() // 4)
    pieces = torch.split(buffer, PIECE_BYTES // 4)[:-1] or (buffer,)  # the last may be short
    all_threads = torch.get_num_threads()
    counts = sorted({1, all_threads})
    try:
        found = [(_fastest(pieces, duration_s / len(counts), count), count) for count in counts]
    finally:
        torch.set_num_threads(all_threads)
    best, num_threads = max(found)
    return Bandwidth(best, num_threads, buffer.nbytes)


def _fastest(pieces: Sequence[Tensor], duration_s: float, num_threads: int) -> float:
    """Bytes per second."""
    torch.set_num_threads(num_threads)
    shortest = math.inf
    until = time.perf_counter() + duration_s
    for piece in itertools.cycle(pieces):
        start = time.perf_counter()
        piece.sum()
        end = time.perf_counter()
        shortest = min(shortest, end - start)
        if end > until:
            break
    return pieces[0].nbytes / shortest


def _buffer_bytes() -> int:
    """Beyond the caches, but at most a quarter of the memory that is free."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(max(MIN_BUFFER_BYTES, CACHES * _largest_cache()), free // 4)


def _largest_cache() -> int:
    """Bytes; 0 where the system does not tell."""
    sizes = [path.read_text().strip() for path in Path("/sys").glob(_CACHE_SIZES)]
    return max(
        (int(size[:-1]) * _UNITS[size[-1]] for size in sizes if size[-1:] in _UNITS), default=0
    )
