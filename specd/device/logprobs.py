"""The log probability of a token, its rank, and the most probable tokens of its position.

Order and rank compare what the distribution was made from: in fp32 two different logits may have
the same log probability, and the token that greedy decoding takes must come first.
Each row runs alone at one fixed shape. Invariant: nothing but the row decides a bit.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specd.engine.step_types import TokenLogprob


def token_logprob(logits: Tensor, token: int, top: int) -> TokenLogprob:
    """Of `token` in the distribution that `logits` describe, with `top` alternatives.

    logits: fp32 [vocab], log probabilities but for a constant, -inf where impossible; no NaN and a
    finite largest. Impossible tokens are no alternatives.
    """
    # Of one row log_softmax runs on one thread, and in half the time of logsumexp.
    logprobs, values = torch.log_softmax(logits, 0).numpy(), logits.numpy()
    rank = 1 + int(np.count_nonzero(values > values[token]))
    best = most_probable(values, top)
    alternatives = tuple(zip(best.tolist(), logprobs[best].tolist(), strict=True))
    return TokenLogprob(token, float(logprobs[token]), rank, alternatives)


def most_probable(values: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.int64]:
    """The ids of the `count` largest values, largest first, lowest id first among equals.

    Ids of -inf are left out, so that there may be fewer.
    """
    count = min(count, len(values))
    if not count:
        return np.empty(0, np.int64)
    last = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > last)  # fewer than `count`
    equal = np.flatnonzero(values == last)[: count - len(above)]
    ids = np.concatenate([above, equal])
    ids = ids[np.isfinite(values[ids])]
    ordered: npt.NDArray[np.int64] = ids[np.lexsort((ids, -values[ids]))]
    return ordered
