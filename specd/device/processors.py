"""What a request does to the logits of a position before a token is chosen from them.

Order: penalties for tokens that were seen, then the bias, then bans: end tokens that come too soon,
and what a structure forbids. A bias means what it says, so it comes behind the penalties; nothing
brings a banned token back. A position sees the draft tokens before it and nothing behind it.
Each operation is one of numpy over whole arrays in fp32, so that nothing is fused and rounded
elsewhere. Penalties cost what the distinct tokens cost that were seen, not the vocabulary.
Invariant: the logits of the runner and `SeenTokens` are read and never written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specd.engine.params import SamplingParams
from specd.engine.step_types import Choosing, PaddedRow, SeenTokens, Words

F32 = npt.NDArray[np.float32]

_BANNED = np.float32(-np.inf)
# For each byte of a mask the upper bounds of its eight tokens: none, or one that bans.
_BOUNDS = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"),
    np.float32(np.inf),
    _BANNED,
)


def changes_logits(choosing: Choosing) -> bool:
    """Whether any processor applies to a row."""
    return bool(
        choosing.seen is not None
        or choosing.sampling.logit_bias
        or (choosing.banned and choosing.num_banned)
        or choosing.masks is not None
    )


class RowProcessors:
    """The processors of one row's sampled positions."""

    def __init__(self, row: PaddedRow, vocab_size: int) -> None:
        """Wait for the masks of the row's structure, if it has one.

        Raises:
            ValueError: they have another shape than the row's positions.
            Exception: what the matcher raised.
        """
        choosing = row.choosing
        assert choosing.seen is not None or not choosing.sampling.penalises
        self._choosing = choosing
        self._draft = row.draft
        pairs = choosing.sampling.logit_bias
        self._bias_ids = np.array([token for token, _ in pairs], np.int64)
        self._bias = np.array([value for _, value in pairs], np.float32)
        self._masks = _masks_of(row, vocab_size)

    def apply(self, logits: F32, index: int) -> F32:
        """A copy of `logits` [vocab], as sampled position `index` of the row sees them."""
        choosing, changed = self._choosing, logits.copy()
        with np.errstate(over="ignore"):  # what overflows is infinite, and the verifier sees that
            if choosing.seen is not None:
                penalise(changed, choosing.sampling, choosing.seen, self._draft[:index])
            changed[self._bias_ids] += self._bias
        if index < choosing.num_banned:
            changed[list(choosing.banned)] = _BANNED
        if self._masks is not None:
            forbid(changed, self._masks[index])
        return changed


def penalise(logits: F32, params: SamplingParams, seen: SeenTokens, prefix: Sequence[int]) -> None:
    """Apply the three penalties in place, with the draft tokens `prefix` seen too."""
    ids, in_prompt, counts = seen_with(seen, prefix)
    values, repetition = logits[ids], np.float32(params.repetition_penalty)
    repeated = np.where(values > 0, values / repetition, values * repetition)
    values = np.where(in_prompt | (counts > 0), repeated, values)
    values -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
    values -= np.where(counts > 0, np.float32(params.presence_penalty), np.float32(0))
    logits[ids] = values


def seen_with(
    seen: SeenTokens, prefix: Sequence[int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.int32]]:
    """The distinct ids, whether each is in the prompt, and counts in the answer, with `prefix`."""
    counts = seen.counts.copy()
    new: Counter[int] = Counter()
    for token in prefix:
        place = seen.places.get(token)
        if place is None:
            new[token] += 1
        else:
            counts[place] += 1
    return (
        np.concatenate([seen.ids, np.fromiter(new.keys(), np.int64)]),
        np.concatenate([seen.in_prompt, np.zeros(len(new), np.bool_)]),
        np.concatenate([counts, np.fromiter(new.values(), np.int32)]),
    )


def forbid(logits: F32, words: Words) -> None:
    """Set to -inf in place what the mask [ceil(vocab / 32)] does not allow."""
    octets = words.astype("<u4", copy=False).view(np.uint8)
    bounds = _BOUNDS.take(octets, axis=0).reshape(-1)[: len(logits)]
    np.minimum(logits, bounds, out=logits)


def _masks_of(row: PaddedRow, vocab_size: int) -> Words | None:
    if row.choosing.masks is None:
        return None
    words = row.choosing.masks.result()
    wanted = row.num_samples, -(-vocab_size // 32)
    if words.shape != wanted or words.dtype != np.uint32:
        raise ValueError(f"masks are {words.dtype} {words.shape} and should be uint32 {wanted}")
    return np.ascontiguousarray(words)
