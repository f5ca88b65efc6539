"""`specd` with a torch that fails when told to: a fake of a device, not of specd.

SIGUSR1: the next copy or reduction fails, as one bad step would. SIGUSR2: all fail from then on, as
on a lost device. Torch's steps copy, and those of the core, which computes without torch, reduce
the logits where they are verified. Run as `python -m tests.support.faulty_torch serve ...`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

import torch

from specd.cli.main import main

_failures_left = 0.0


def _faulty(real: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The method, which fails while failures are left."""

    def method(self: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        global _failures_left
        if _failures_left > 0:
            _failures_left -= 1
            raise RuntimeError("device error: an illegal memory access was encountered")
        return real(self, *arguments, **options)

    return method


def _fail(times: float) -> None:
    global _failures_left
    _failures_left = times


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: _fail(1))
    signal.signal(signal.SIGUSR2, lambda *_: _fail(float("inf")))
    for name in ("copy_", "amax"):
        setattr(torch.Tensor, name, _faulty(getattr(torch.Tensor, name)))
    sys.exit(main())
