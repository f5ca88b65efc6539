"""Padded batches by hand, for tests of the rooms behind the padding stage."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from torch import Tensor

from specd.device.sampler import TorchSampler
from specd.device.verifier import verify
from specd.engine.padding import pad
from specd.engine.params import SamplingParams
from specd.engine.step_types import (
    Choosing,
    CleanDraft,
    LayoutSpec,
    PaddedBatch,
    PlannedRow,
    RowResult,
    SeenTokens,
    Words,
)
from specd.kv.pages import RESERVED_PAGES, pages_for

GREEDY = SamplingParams(temperature=0)
PACKED = LayoutSpec((1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024))


def planned(
    tokens: Sequence[int],
    first_position: int,
    *,
    samples: bool = True,
    sampling: SamplingParams = GREEDY,
    choosing: Choosing | None = None,
    score_targets: Sequence[int] = (),
    score_top: int = 0,
    name: str = "row",
) -> PlannedRow:
    """`choosing` instead of `sampling` where a row has more than that."""
    return PlannedRow(
        name,
        0,
        tuple(tokens),
        first_position,
        samples,
        choosing or Choosing(sampling),
        tuple(score_targets),
        score_top,
    )


def batch_of(
    rows: Sequence[PlannedRow], drafts: Sequence[Sequence[int]], layout: LayoutSpec = PACKED
) -> PaddedBatch:
    """Rows with pages of their own, one behind the other."""
    pages, free = [], RESERVED_PAGES
    for row, draft in zip(rows, drafts, strict=True):
        count = pages_for(row.first_position + len(row.tokens) + len(draft))
        pages.append(range(free, free + count))
        free += count
    return pad(rows, [CleanDraft(tuple(draft)) for draft in drafts], pages, layout)


def one_row_batch(
    *,
    last_position: int,
    draft: Sequence[int],
    sampling: SamplingParams = GREEDY,
    choosing: Choosing | None = None,
) -> PaddedBatch:
    """A row that decodes the token at `last_position` with a draft behind it."""
    return batch_of([planned([0], last_position, sampling=sampling, choosing=choosing)], [draft])


def seen_tokens(prompt: Sequence[int], answer: Sequence[int]) -> SeenTokens:
    """What the loop keeps for the penalties; nobody can write to it."""
    ids = list(dict.fromkeys([*prompt, *answer]))
    arrays = (
        np.array(ids, np.int64),
        np.array([token in prompt for token in ids], np.bool_),
        np.array([answer.count(token) for token in ids], np.int32),
    )
    for array in arrays:
        array.flags.writeable = False
    return SeenTokens(*arrays, MappingProxyType({token: at for at, token in enumerate(ids)}))


def mask_words(allowed: Sequence[Collection[int]], vocab: int) -> Words:
    """[positions, ceil(vocab / 32)], bit by bit; bits beyond the vocabulary are set."""
    words = np.zeros((len(allowed), -(-vocab // 32)), np.uint32)
    for row, ids in zip(words, allowed, strict=True):
        for token in [*ids, *range(vocab, 32 * len(row))]:
            row[token // 32] |= np.uint32(1 << token % 32)
    return words


@dataclass
class ReadyMasks:
    """Masks that are there, or what the matcher raised. calls: how often they were asked for."""

    words: Words | Exception
    calls: int = 0

    def result(self) -> Words:
        self.calls += 1
        if isinstance(self.words, Exception):
            raise self.words
        return self.words


def verified(logits: Tensor, batch: PaddedBatch) -> tuple[RowResult | None, ...]:
    """What the verifier says with the reference sampler."""
    return verify(logits, batch, TorchSampler())
