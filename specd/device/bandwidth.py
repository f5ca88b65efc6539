"""How fast this machine reads memory: the bound of plain decoding, which reads all weights a step.

Knows torch's threads and the size of the caches; nothing of models.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

MEASURE_S = 0.5
# A virtual machine is often told of less cache than its host shares with it: reading 256 MiB again
# and again gave 73 GB/s where 1 GiB gave 32.
MIN_BUFFER_BYTES = 1 << 30
CACHES = 8
_CACHE_SIZES = "devices/system/cpu/cpu0/cache/index*/size"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The fastest of several passes over a buffer that no cache holds."""

    bytes_per_s: float
    num_threads: int
    buffer_bytes: int


def read_bandwidth(duration_s: float = MEASURE_S) -> Bandwidth:
    """Read a large buffer with all of torch's threads for about `duration_s`."""
    buffer = torch.ones(_buffer_bytes() // 4)
    times: list[float] = []
    until = time.perf_counter() + duration_s
    while not times or time.perf_counter() < until:
        start = time.perf_counter()
        buffer.sum()
        times.append(time.perf_counter() - start)
    return Bandwidth(buffer.nbytes / min(times), torch.get_num_threads(), buffer.nbytes)


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
