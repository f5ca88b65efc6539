"""The values that pass between the six rooms of a step. All frozen; nobody adds fields elsewhere.

A *row* is a request's share of one step. Flat positions number the token slots of a step, pads
included; text positions number the tokens of a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import numpy as np
import numpy.typing as npt

from specd.engine.params import SamplingParams

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class SeenTokens:
    """The tokens of a row's request before its first sampled position, draft tokens left out.

    ids: int64 [distinct], in order of first occurrence. in_prompt: bool [distinct]. counts: int32
    [distinct], occurrences in the answer. places: index into these by token id.
    Read-only, and valid while the step runs: the loop appends behind it between steps.
    """

    ids: Ints
    in_prompt: npt.NDArray[np.bool_]
    counts: npt.NDArray[np.int32]
    places: Mapping[int, int]


class Masks(Protocol):
    """What a structure allows, computed beside the forward pass."""

    def result(self) -> Words:
        """Wait for them: [sampled positions, ceil(vocab / 32)], bit i % 32 of word i // 32 is set
        where token i is allowed. May be called again. Raises what the matcher raised."""


@dataclass(frozen=True, slots=True)
class Choosing:
    """How a row's tokens are chosen: everything between its logits and its tokens.

    seen: for the penalties, None where there are none. banned: ids that cannot be chosen at the
    first `num_banned` sampled positions. top_logprobs, processed_logprobs: as in `OutputParams`.
    masks: of a structure, None without one.
    """

    sampling: SamplingParams
    seen: SeenTokens | None = None
    banned: tuple[int, ...] = ()
    num_banned: int = 0
    top_logprobs: int | None = None
    processed_logprobs: bool = False
    masks: Masks | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural logarithm of a token's probability, its rank (1 is the most probable), and the
    most probable tokens of its position as (id, logprob), best first, lowest id first among equals.

    logprob and rank are None for the first token of a prompt.
    """

    token_id: int
    logprob: float | None
    rank: int | None
    alternatives: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """What the scheduler gives a request in this step.

    tokens: the known but uncomputed token ids that run now. first_position: text position of the
    first. samples: whether these reach the last known token, so that the row yields a new one.
    score_targets: the prompt tokens that follow the first positions, where their log probabilities
    are wanted. score_top: alternatives to list for each.
    """

    request_id: str
    slot: int
    tokens: tuple[int, ...]
    first_position: int
    samples: bool
    choosing: Choosing
    score_targets: tuple[int, ...] = ()
    score_top: int = 0


@dataclass(frozen=True, slots=True)
class CleanDraft:
    """A draft after the padding stage: legal ids, at most the allowance.

    fault: what was wrong with the raw draft (illegal ids, not a sequence), None if nothing.
    """

    token_ids: tuple[int, ...] = ()
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class LayoutSpec:
    """Which static shapes the runner has.

    packed_buckets: totals of flat positions, ascending; the last bounds a step.
    widths: positions per row of the rectangle, ascending; empty where the runner runs packed.
    row_buckets: rows of the rectangle, ascending.
    """

    packed_buckets: tuple[int, ...]
    widths: tuple[int, ...] = ()
    row_buckets: tuple[int, ...] = ()

    @property
    def rectangular(self) -> bool:
        return bool(self.widths)

    @property
    def max_draft(self) -> int:
        """Draft tokens that fit a row beside the one token that it is behind."""
        return (self.widths or self.packed_buckets)[-1] - 1


@dataclass(frozen=True, slots=True)
class PaddedRow:
    """A row inside a padded batch.

    offset: flat index of its first position. count: real positions, draft included; behind them,
    up to `span`, are pads. draft: the draft's ids. pages: KV pages that cover its positions.
    sample_offset: index of its first sampled position in `PaddedBatch.sample_index`; a row that
    samples has draft_len + 1 of them, another none. Directly before it are the scored positions,
    one for each of `score_targets`.
    """

    request_id: str
    slot: int
    offset: int
    count: int
    span: int
    first_position: int
    draft: tuple[int, ...]
    samples: bool
    sample_offset: int
    pages: tuple[int, ...]
    choosing: Choosing
    score_targets: tuple[int, ...] = ()
    score_top: int = 0

    @property
    def draft_len(self) -> int:
        return len(self.draft)

    @property
    def num_samples(self) -> int:
        return self.draft_len + 1 if self.samples else 0


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """A step of static shape with the real lengths beside it.

    bucket: the graph key as text, `packed:16` or `4x8` (rows x width) or `4x8+packed:64`.
    tokens, positions, kv_slots: [bucket total]; pads hold token 0, position 0 and a slot of the
    scratch page, and nothing ever asks whether a value is a pad: lengths say so.
    sample_index: flat positions whose logits are wanted, row by row.
    fresh_pages: pages handed out for this step, to be zeroed before anything is written.
    """

    bucket: str
    rows: tuple[PaddedRow, ...]
    tokens: Ints
    positions: Ints
    kv_slots: Ints
    sample_index: Ints
    fresh_pages: tuple[int, ...] = ()

    @property
    def num_positions(self) -> int:
        return len(self.tokens)

    @property
    def num_real(self) -> int:
        return sum(row.count for row in self.rows)

    @property
    def num_pads(self) -> int:
        return self.num_positions - self.num_real


class RowFault(Enum):
    """Why a row has no tokens."""

    NOT_FINITE = auto()  # a position that counts had a NaN, or no finite largest logit
    NO_MASK = auto()  # the matcher of its structure failed


@dataclass(frozen=True, slots=True)
class RowResult:
    """What verification found for a row that samples or scores.

    accepted: draft tokens that the target would have produced itself, from the first on.
    token_ids: those, and the target's own token behind them: accepted + 1 ids; none if the row does
    not sample. logprobs: one per token id where asked for. prompt_logprobs: one per score target.
    fault: why everything else means nothing, None if all is well.
    """

    accepted: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    fault: RowFault | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """One `RowResult` per row of the batch, None for rows that neither sample nor score."""

    rows: tuple[RowResult | None, ...]
    device_time_s: float
