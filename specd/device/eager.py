"""The torch runner, and the reference for every other: a padded batch in, verified tokens out.

Owns the KV cache and the static input buffers; runs on the device thread only. Knows nothing of
requests. Invariant: every KV value that attention can reach is finite: the zero page stays zero,
pages are zeroed when they are handed out, rejected drafts are zeroed after their step, and the
scratch page is never named by a block table.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from specd.device.layout import HeadCounts, attention_layout
from specd.device.memory import untouched_zeros
from specd.device.sampler import Sampler, TorchSampler
from specd.device.verifier import verify
from specd.engine.padding import pad
from specd.engine.step_types import (
    CleanDraft,
    LayoutSpec,
    Masks,
    PaddedBatch,
    PaddedRow,
    PlannedRow,
    RowFault,
    RowResult,
    StepResult,
    Words,
)
from specd.kv.pages import PAGE_SIZE, RESERVED_PAGES
from specd.model.arch import ModelConfig
from specd.model.attention import DeviceGroup, DeviceLayout, causal_mask
from specd.model.decoder import Decoder

# Totals of flat positions. Steps are charged for their pads, so the buckets are close together.
PACKED_BUCKETS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96,
                  112, 128, 160, 192, 224, 256, 320, 384, 448, 512)  # fmt: skip


def packed_buckets(max_positions: int) -> tuple[int, ...]:
    """The buckets of a runner whose steps hold at most `max_positions`."""
    return (*(bucket for bucket in PACKED_BUCKETS if bucket < max_positions), max_positions)


class EagerRunner:
    """Runs steps over static buffers. All methods belong to the device thread."""

    kernels = "torch"
    read_bytes_per_second = 0

    def __init__(
        self, decoder: Decoder, *, num_pages: int, layout: LayoutSpec, strict: bool
    ) -> None:
        """`num_pages` counts usable pages; the reserved two come on top."""
        self.decoder = decoder
        self.sampler: Sampler = TorchSampler()
        self.layout = layout
        self.strict = strict
        self.num_pages = num_pages
        self.weight_bytes = sum(linear.bytes for linear in decoder.weights.linears())
        config = decoder.config
        self.kv_bytes_per_position = (
            config.num_layers * config.kv_width * decoder.weights.kv_dtype.itemsize
        )
        self._heads = HeadCounts(config.num_heads, config.num_kv_heads, config.fused_heads)
        shape = decoder.cache_shape(num_pages + RESERVED_PAGES, PAGE_SIZE)
        self._cache = untouched_zeros(shape, decoder.weights.kv_dtype)
        size = _largest(layout)
        self._tokens, self._positions, self._kv_slots = (
            torch.zeros(size, dtype=torch.int64) for _ in range(3)
        )

    @property
    def config(self) -> ModelConfig:
        return self.decoder.config

    def step(self, batch: PaddedBatch) -> StepResult:
        """Run and verify one batch."""
        start = time.perf_counter()
        rows = verify(self.logits(batch), batch, self.sampler)
        self._clear_rejected(batch, rows)
        return StepResult(self._judge_alone(batch, rows), time.perf_counter() - start)

    def check(self) -> None:
        """Copy one number through a static buffer: what a lost device cannot."""
        self._tokens[:1].copy_(torch.zeros(1, dtype=torch.int64))

    def logits(self, batch: PaddedBatch) -> Tensor:
        """Run one batch; fp32 [len(batch.sample_index), vocab]."""
        if batch.fresh_pages:
            self._cache.index_fill_(1, torch.tensor(batch.fresh_pages), 0)
        size = batch.num_positions
        tokens, positions, kv_slots = (
            buffer[:size] for buffer in (self._tokens, self._positions, self._kv_slots)
        )
        tokens.copy_(torch.from_numpy(batch.tokens))
        positions.copy_(torch.from_numpy(batch.positions))
        kv_slots.copy_(torch.from_numpy(batch.kv_slots))
        layouts = {
            window: self.device_layout(batch.rows, size, window)
            for window in set(self.decoder.config.windows)
        }
        hidden = self.decoder.hidden(tokens, positions, kv_slots, self._cache, layouts)
        if not batch.sample_index.size:
            return hidden.new_empty((0, self.decoder.config.vocab_size), dtype=torch.float32)
        return self.decoder.logits(hidden, torch.from_numpy(batch.sample_index))

    def _judge_alone(
        self, batch: PaddedBatch, rows: tuple[RowResult | None, ...]
    ) -> tuple[RowResult | None, ...]:
        """Run rows that failed beside a draft again without it: the draft may be what broke them.

        A draft token whose K and V are NaN passes the mask of the positions before it.
        """
        return tuple(
            self._without_draft(batch, row)
            if result is not None and result.fault is RowFault.NOT_FINITE and row.draft
            else result
            for row, result in zip(batch.rows, rows, strict=True)
        )

    def _without_draft(self, batch: PaddedBatch, row: PaddedRow) -> RowResult | None:
        known = batch.tokens[row.offset : row.offset + row.count - row.draft_len]
        masks = row.choosing.masks
        plain = PlannedRow(
            row.request_id, row.slot, tuple(known.tolist()), row.first_position, True,
            replace(row.choosing, masks=None if masks is None else _FirstMask(masks)),
            row.score_targets, row.score_top,
        )  # fmt: skip
        alone = pad([plain], [CleanDraft()], [row.pages], self.layout)
        return verify(self.logits(alone), alone, self.sampler)[0]

    def _clear_rejected(self, batch: PaddedBatch, rows: Sequence[RowResult | None]) -> None:
        """Zero K and V of rejected drafts: a NaN among them would pass the mask of later steps."""
        stale = []
        for row, result in zip(batch.rows, rows, strict=True):
            if result is not None and result.accepted < row.draft_len:
                end = row.offset + row.count
                stale.append(batch.kv_slots[end - row.draft_len + result.accepted : end])
        if stale:
            slots = self._cache.flatten(1, 2)  # [layer, slot, K or V, kv_head, dim], a view
            slots.index_fill_(1, torch.from_numpy(np.concatenate(stale)), 0)

    def device_layout(
        self, rows: Sequence[PaddedRow], num_positions: int, window: int
    ) -> DeviceLayout:
        """Where each of `num_positions` flat positions attends in layers with this window."""
        plan = attention_layout(rows, num_positions, self._heads, window, strict=self.strict)
        dtype = self._cache.dtype
        groups = tuple(
            DeviceGroup(
                num_segments=group.num_segments,
                kv_length=group.kv_length,
                query_index=torch.from_numpy(group.query_index),
                table=torch.from_numpy(group.table),
                mask=causal_mask(torch.from_numpy(group.limit), group.kv_length, dtype, window),
            )
            for group in plan.groups
        )
        return DeviceLayout(groups, torch.from_numpy(plan.output_index))


@dataclass(frozen=True, slots=True)
class _FirstMask:
    """The masks of a row without its draft."""

    masks: Masks

    def result(self) -> Words:
        return self.masks.result()[:1]


def _largest(layout: LayoutSpec) -> int:
    rectangle = max(layout.widths, default=0) * max(layout.row_buckets, default=0)
    return rectangle + layout.packed_buckets[-1]
