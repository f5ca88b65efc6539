"""The runner of the C++ core: a padded batch in, verified tokens out.

Owns the KV cache and the buffer of logits; runs on the device thread only. The core computes any
number of positions with the same bits, so that a step has no pads. Attention reads no position but
those that a query sees, so that nothing has to be cleared: neither pages nor rejected drafts.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from specd.core.decoder import CoreDecoder, CoreRow
from specd.core.sampler import CoreSampler
from specd.device.memory import untouched_zeros
from specd.device.verifier import verify
from specd.engine.step_types import LayoutSpec, PaddedBatch, StepResult
from specd.kv.pages import RESERVED_PAGES
from specd.model.arch import ModelConfig


def every_total(max_positions: int) -> LayoutSpec:
    """A layout without pads, for steps of at most `max_positions`."""
    return LayoutSpec(tuple(range(1, max_positions + 1)))


class CoreRunner:
    """Runs steps in the core. All methods belong to the device thread."""

    def __init__(self, decoder: CoreDecoder, *, num_pages: int) -> None:
        """`num_pages` counts usable pages; the reserved two come on top."""
        self.decoder = decoder
        self.kernels = decoder.isa
        self.sampler = CoreSampler(decoder.config.vocab_size, isa=decoder.isa, decoder=decoder)
        self.layout = every_total(decoder.max_positions)
        self.num_pages = num_pages
        self.weight_bytes = sum(linear.bytes for linear in decoder.weights.linears())
        self.read_bytes_per_second = decoder.read_bytes_per_second()
        self.kv_bytes_per_position = (
            decoder.config.num_layers * decoder.config.kv_width * decoder.weights.kv_dtype.itemsize
        )
        shape = decoder.cache_shape(num_pages + RESERVED_PAGES)
        self._cache = untouched_zeros(shape, decoder.weights.kv_dtype)
        # One row for each position that a step may sample; most are never touched.
        rows = decoder.max_positions, decoder.config.vocab_size
        self._logits = untouched_zeros(rows, torch.float32)

    @property
    def config(self) -> ModelConfig:
        return self.decoder.config

    def step(self, batch: PaddedBatch) -> StepResult:
        """Run and verify one batch."""
        start = time.perf_counter()
        rows = verify(self.logits(batch), batch, self.sampler)
        return StepResult(rows, time.perf_counter() - start)

    def check(self) -> None:
        """Copy one number through the logits: what a lost device cannot."""
        self._logits[0, :1].copy_(torch.zeros(1))

    def logits(self, batch: PaddedBatch) -> Tensor:
        """Run one batch; fp32 [len(batch.sample_index), vocab], valid until the next call."""
        assert not batch.num_pads, "every total has its own layout"
        logits = self._logits[: len(batch.sample_index)]
        rows = [CoreRow(row.first_position, row.count, row.pages) for row in batch.rows]
        self.decoder.run(batch.tokens, rows, batch.sample_index, self._cache, logits)
        return logits
