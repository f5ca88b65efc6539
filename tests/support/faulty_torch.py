"""`specd` with a torch that fails when told to: a fake of a device, not of specd.

SIGUSR1: the next copy into a buffer fails, as one bad step would. SIGUSR2: all fail from then on,
as on a lost device. Run as `python -m tests.support.faulty_torch serve ...`.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

import torch

from specd.cli.main import main

_REAL_COPY = torch.Tensor.copy_
_failures_left = 0.0


def _copy(self: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
    global _failures_left
    if _failures_left > 0:
        _failures_left -= 1
        raise RuntimeError("device error: an illegal memory access was encountered")
    return _REAL_COPY(self, *arguments, **options)


def _fail(times: float) -> None:
    global _failures_left
    _failures_left = times


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: _fail(1))
    signal.signal(signal.SIGUSR2, lambda *_: _fail(float("inf")))
    torch.Tensor.copy_ = _copy  # type: ignore[method-assign, assignment]
    sys.exit(main())
