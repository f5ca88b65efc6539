"""The token at a position, as a pure function of its logits, its parameters and its key.

Order: temperature, top_k, top_p (over what top_k kept), min_p; then keyed Gumbel noise and argmax.
Truncations keep every token at or above their threshold value, so ties never depend on an order of
sorting; argmax takes the lowest id. Each row runs alone at one fixed shape: vector code treats the
tail of a tensor differently, and a batch of rows would move the tails.
Invariant: nothing but the arguments decides.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specd.device.noise import gumbel, key_tensor
from specd.engine.params import SamplingParams
from specd.engine.seeds import key_words

# Colder than this, a logit gap of one bf16 step outweighs any noise: the argmax is the limit.
COLDEST = 1e-6
# Sorted prefixes that usually hold the nucleus; a full sort of 151,936 logits costs 12 ms.
_PREFIXES = (64, 1024)


def is_greedy(params: SamplingParams) -> bool:
    """Whether the noise is dropped."""
    return params.temperature < COLDEST


def sample(logits: Tensor, params: SamplingParams, position: int) -> Tensor:
    """fp32 logits [vocab] -> the token id at text position `position`, a scalar tensor."""
    if is_greedy(params):
        return logits.argmax()
    key = key_tensor([key_words(params.seed, position)])
    return (scores(logits, params) + gumbel(key, logits.shape[0])[0]).argmax()


def scores(logits: Tensor, params: SamplingParams) -> Tensor:
    """What the noise is added to: log probabilities but for a constant, -inf where removed.

    Greedy: logits less their maximum, nothing removed.
    """
    shifted = logits - logits.max()
    if is_greedy(params):
        return shifted
    return truncate(shifted / params.temperature, params)


def truncate(scores: Tensor, params: SamplingParams) -> Tensor:
    """Set what top_k, top_p and min_p remove to -inf; scores [vocab] have their maximum at 0."""
    if 0 < params.top_k < scores.shape[0]:
        smallest = scores.topk(params.top_k).values[-1]
        scores = scores.masked_fill(scores < smallest, -math.inf)
    if params.top_p < 1:
        probabilities = torch.softmax(scores, -1)
        smallest = nucleus_threshold(probabilities, params.top_p)
        scores = scores.masked_fill(probabilities < smallest, -math.inf)
    if params.min_p > 0:
        scores = scores.masked_fill(scores < math.log(params.min_p), -math.inf)
    return scores


def nucleus_threshold(probabilities: Tensor, top_p: float) -> Tensor:
    """The probability of the last token of the smallest sorted prefix with mass >= top_p.

    Tries short sorted prefixes first. A cumulative sum runs from the front, so a prefix that
    reaches the mass gives the same threshold as the whole.
    """
    size = probabilities.shape[0]
    for count in (*(prefix for prefix in _PREFIXES if prefix < size), size):
        largest = probabilities.topk(count).values
        mass = largest.cumsum(0)
        if count == size or bool(mass[-1] >= top_p):
            break
    inside = int((mass < top_p).sum())
    return largest[min(inside, count - 1)]
