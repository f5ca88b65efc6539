"""The one thread that owns torch. The event loop hands it a batch and gets tokens back.

Invariant: no other thread calls torch once the model is loading, and no request is known here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from specd.device.assembly import DeviceSettings, Progress
from specd.device.boot import Booted, boot
from specd.engine.step_types import LayoutSpec, PaddedBatch, StepResult
from specd.threads import DedicatedThread

T = TypeVar("T")


class DeviceThread:
    """Boots a model and runs its steps, all on one thread."""

    def __init__(self) -> None:
        self._thread = DedicatedThread("specd-device")
        # Inference mode is a property of the thread: set once, for every step.
        self._thread.post(_enter_inference_mode)
        self._booted: Booted | None = None

    async def boot(self, settings: DeviceSettings, progress: Progress) -> Booted:
        """Load and warm up a model. Raises as `boot.boot`."""
        self._booted = await self._thread.call(partial(boot, settings, progress))
        return self._booted

    @property
    def layout(self) -> LayoutSpec:
        """The static shapes of the booted runner."""
        assert self._booted is not None
        return self._booted.runner.layout

    async def step(self, batch: PaddedBatch) -> StepResult:
        """Run and verify one batch."""
        assert self._booted is not None
        return await self._thread.call(partial(self._booted.runner.step, batch))

    async def check(self) -> None:
        """Let the device compute something that depends on nothing. Raises what torch raises."""
        assert self._booted is not None
        await self._thread.call(self._booted.runner.check)

    async def run(self, work: Callable[[], T]) -> T:
        """Do something else on the thread, between steps. Raises what `work` raises."""
        return await self._thread.call(work)

    def close(self, timeout_s: float) -> bool:
        """Let the running step finish; True if it did in time."""
        return self._thread.close(timeout_s)


def _enter_inference_mode() -> None:
    torch.inference_mode().__enter__()
