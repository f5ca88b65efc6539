"""What a runner is: something that turns padded batches into verified tokens.

Two exist: `core_runner.py` runs the C++ core, `eager.py` torch, which is the reference. Invariant:
whoever holds a runner cannot tell which it is but by its name and its bits.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from specd.engine.step_types import LayoutSpec, PaddedBatch, StepResult
from specd.model.arch import ModelConfig


class Runner(Protocol):
    """All methods belong to the device thread.

    kernels: what computes a step, for instance `avx512` or `torch`. num_pages: usable pages.
    weight_bytes: what a step of one position reads of the weights, the embedding's table left out.
    kv_bytes_per_position: what a position of context holds in the cache.
    read_bytes_per_second: how fast the weights were read at start; 0 where it was not measured.
    """

    kernels: str
    layout: LayoutSpec
    num_pages: int
    weight_bytes: int
    kv_bytes_per_position: int
    read_bytes_per_second: int

    @property
    def config(self) -> ModelConfig: ...

    def step(self, batch: PaddedBatch) -> StepResult:
        """Run and verify one batch."""

    def logits(self, batch: PaddedBatch) -> Tensor:
        """Run one batch; fp32 [len(batch.sample_index), vocab], valid until the next call."""

    def check(self) -> None:
        """Touch the device: what a lost one cannot."""
