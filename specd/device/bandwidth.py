"""How fast this machine reads memory: the bound of plain decoding, which reads all weights a step.

Knows torch's threads and the size of the caches; nothing of models.
"""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

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
    """The fastest of many reads of a buffer that no cache holds: neighbours only slow them down."""

    bytes_per_s: float
    num_threads: int
    buffer_bytes: int


def read_bandwidth(duration_s: float = MEASURE_S) -> Bandwidth:
    """Read a large buffer with all of torch's threads for about `duration_s`."""
    buffer = torch.ones(_buffer_bytes() // 4)
    pieces = torch.split(buffer, PIECE_BYTES // 4)[:-1] or (buffer,)  # the last may be short
    times: list[float] = []
    until = time.perf_counter() + duration_s
    for piece in itertools.cycle(pieces):
        start = time.perf_counter()
        piece.sum()
        times.append(time.perf_counter() - start)
        if time.perf_counter() > until:
            break
    return Bandwidth(pieces[0].nbytes / min(times), torch.get_num_threads(), buffer.nbytes)


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
