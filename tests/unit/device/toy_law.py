"""A toy target whose law is known exactly, and sequences that are drawn from it step by step.

The target's logits are a table over the last two tokens. `joint_law` works the law of three tokens
out in plain fp64 arithmetic, in the order of docs/the-law.md, and shares nothing with specd;
`continuations` drives the padding stage and a verifier over the same table, with drafts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from types import MappingProxyType

import torch
from torch import Tensor

from specd.device.noise import gumbel, key_tensor
from specd.device.sampler import SampleJob, Sampler
from specd.device.sampling import is_greedy, scores
from specd.engine.params import SamplingParams
from specd.engine.seeds import key_words
from specd.engine.step_types import (
    Choosing,
    LayoutSpec,
    PaddedBatch,
    PlannedRow,
    RowResult,
)
from tests.unit.device.batches import ReadyMasks, batch_of, mask_words, planned, seen_tokens

VOCAB, END = 6, 5
LENGTH = 3  # tokens of a sequence
PROMPT = (1, 3, 0, 4, 1, 3, 0)
# Logits of the next token after the last two; fp32 values, so that fp64 holds them exactly.
TABLE = torch.randn(VOCAB, VOCAB, VOCAB, generator=torch.Generator().manual_seed(8)) * 1.2
_CHUNK = 128  # rows of a step
PACKED = LayoutSpec((1 << 12,))
RECTANGLE = LayoutSpec((1 << 12,), widths=(8,), row_buckets=(_CHUNK,))  # with pads in every row

Token = tuple[int, ...]
Verifier = Callable[[Tensor, PaddedBatch, Sampler], tuple[RowResult | None, ...]]


@dataclass(frozen=True)
class Combination:
    """How tokens are chosen. structured: the mask of a position follows from the token before."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    min_new_tokens: int = 0
    structured: bool = False

    def choosing(self, seed: int, answer: Token, draft: Token) -> Choosing:
        """What the loop says of a row behind `answer`."""
        masks = None
        if self.structured:
            texts = [(*PROMPT, *answer, *draft[:index]) for index in range(len(draft) + 1)]
            masks = ReadyMasks(mask_words([allowed_behind(text) for text in texts], VOCAB))
        return Choosing(
            replace(self.sampling, seed=seed),
            seen_tokens(PROMPT, answer) if self.sampling.penalises else None,
            (END,) if self.min_new_tokens else (),
            max(0, self.min_new_tokens - len(answer)),
            masks=masks,
        )


def allowed_behind(text: Sequence[int]) -> list[int]:
    return [token for token in range(VOCAB) if (token + text[-1]) % 3 != 0]


# --- the exact law ---


def position_law(
    logits: Sequence[float],
    params: SamplingParams,
    *,
    prompt: Collection[int] = (),
    answer: Sequence[int] = (),
    banned: Collection[int] = (),
) -> list[float]:
    """The probabilities of one position, one processor after the other."""
    bias = dict(params.logit_bias)
    values = [
        -math.inf
        if token in banned
        else _penalised(value, token, params, prompt, answer) + bias.get(token, 0.0)
        for token, value in enumerate(logits)
    ]
    largest = max(values)
    if params.temperature == 0:
        return [float(token == values.index(largest)) for token in range(len(values))]
    weights = [math.exp((value - largest) / params.temperature) for value in values]
    if params.top_k:
        last = sorted(weights, reverse=True)[min(params.top_k, len(weights)) - 1]
        weights = [weight if weight >= last else 0.0 for weight in weights]
    total, mass, last = sum(weights), 0.0, 0.0
    for weight in sorted(weights, reverse=True):
        mass, last = mass + weight, weight
        if mass >= params.top_p * total:
            break
    weights = [weight if weight >= max(last, params.min_p) else 0.0 for weight in weights]
    return [weight / sum(weights) for weight in weights]


def _penalised(
    value: float,
    token: int,
    params: SamplingParams,
    prompt: Collection[int],
    answer: Sequence[int],
) -> float:
    count = list(answer).count(token)
    if count or token in prompt:
        repetition = params.repetition_penalty
        value = value / repetition if value > 0 else value * repetition
    if count:
        value -= params.frequency_penalty * count + params.presence_penalty
    return value


def joint_law(combination: Combination) -> dict[Token, float]:
    """The probability of every sequence of `LENGTH` tokens."""
    table = TABLE.tolist()
    laws: dict[Token, float] = {(): 1.0}
    for index in range(LENGTH):
        longer: dict[Token, float] = {}
        for answer, probability in laws.items():
            text = (*PROMPT, *answer)
            banned = {END} if index < combination.min_new_tokens else set()
            if combination.structured:
                banned |= set(range(VOCAB)) - set(allowed_behind(text))
            law = position_law(
                table[text[-2]][text[-1]],
                combination.sampling,
                prompt=PROMPT,
                answer=answer,
                banned=banned,
            )
            longer |= {(*answer, token): probability * law[token] for token in range(VOCAB)}
        laws = longer
    return laws


def marginal(law: Mapping[Token, float], length: int) -> dict[Token, float]:
    """The law of the first `length` tokens."""
    shares = dict.fromkeys(product(range(VOCAB), repeat=length), 0.0)
    for tokens, probability in law.items():
        shares[tokens[:length]] += probability
    return shares


# --- sequences ---


class QuickSampler:
    """The reference sampler with the noise of all jobs made at once: four times as fast here."""

    def sample(self, jobs: Sequence[SampleJob]) -> list[int]:
        keys = [key_words(job.params.seed, job.position) for job in jobs]
        noise = gumbel(key_tensor(keys), VOCAB)
        noise[[is_greedy(job.params) for job in jobs]] = 0
        found: list[int] = (
            (torch.stack([self.scores(job) for job in jobs]) + noise).argmax(1).tolist()
        )
        return found

    def scores(self, job: SampleJob) -> Tensor:
        return scores(job.logits, job.params)


# A drafter knows the seed, the answer so far, and how the answer goes on without drafts.
Drafter = Callable[[int, Token, Token], Token]


def _random(seed: int, answer: Token) -> random.Random:
    return random.Random(seed * 8 + len(answer))


def _knowing(drafter: Drafter) -> Drafter:
    """Mark a drafter that has to be told the future."""
    FORTUNE_TELLERS.add(drafter)
    return drafter


FORTUNE_TELLERS: set[Drafter] = set()


def off(seed: int, answer: Token, future: Token) -> Token:
    return ()


@_knowing
def oracle(seed: int, answer: Token, future: Token) -> Token:
    return future


@_knowing
def one_right(seed: int, answer: Token, future: Token) -> Token:
    """And then a wrong one."""
    return (*future[:1], *((token + 1) % VOCAB for token in future[1:2]))


@_knowing
def wrong(seed: int, answer: Token, future: Token) -> Token:
    return tuple((token + 1 + seed % (VOCAB - 1)) % VOCAB for token in future)


def random_lengths(seed: int, answer: Token, future: Token) -> Token:
    choose = _random(seed, answer)
    return tuple(choose.randrange(VOCAB) for _ in range(choose.randrange(LENGTH + 2)))


def ngram(seed: int, answer: Token, future: Token) -> Token:
    """What followed the last token when it came up before."""
    text = (*PROMPT, *answer)
    for start in range(len(text) - 1, 0, -1):
        if text[start - 1] == text[-1]:
            return text[start : start + LENGTH]
    return ()


def grammatical(seed: int, answer: Token, future: Token) -> Token:
    """Tokens that the structure allows, now this and now that one."""
    text, choose = [*PROMPT, *answer], _random(seed, answer)
    for _ in range(LENGTH):
        text.append(choose.choice(allowed_behind(text)))
    return tuple(text[-LENGTH:])


@_knowing
def favourite(seed: int, answer: Token, future: Token) -> Token:
    """One token and no other, and only where it is the right one."""
    return (2,) if future[:1] == (2,) else ()


DRAFTERS = (off, oracle, one_right, wrong, random_lengths, ngram, grammatical, favourite)


def continuations(
    combination: Combination,
    drafter: Drafter,
    seeds: range,
    verifier: Verifier,
    sampler: Sampler,
    futures: Mapping[int, Token] = MappingProxyType({}),
) -> dict[int, Token]:
    """`LENGTH` tokens of each seed. futures: those without drafts, for drafters that know them."""
    answers: dict[int, Token] = dict.fromkeys(seeds, ())
    for start in range(0, len(seeds), _CHUNK):
        open_seeds = list(seeds[start : start + _CHUNK])
        layout = (PACKED, RECTANGLE)[start // _CHUNK % 2]
        while open_seeds:
            drafts = [
                drafter(seed, answers[seed], futures.get(seed, ())[len(answers[seed]) :])
                for seed in open_seeds
            ]
            rows = [
                _row(combination, seed, answers[seed], draft)
                for seed, draft in zip(open_seeds, drafts, strict=True)
            ]
            batch = batch_of(rows, drafts, layout)
            contexts = list(_contexts([answers[seed] for seed in open_seeds], drafts))
            logits = TABLE[tuple(torch.tensor(contexts).T)]
            for seed, result in zip(open_seeds, verifier(logits, batch, sampler), strict=True):
                assert result is not None and result.fault is None
                answers[seed] += result.token_ids
            open_seeds = [seed for seed in open_seeds if len(answers[seed]) < LENGTH]
    return {seed: answer[:LENGTH] for seed, answer in answers.items()}


def _row(combination: Combination, seed: int, answer: Token, draft: Token) -> PlannedRow:
    text = (*PROMPT, *answer)
    choosing = combination.choosing(seed, answer, draft)
    return planned(text[-1:], len(text) - 1, choosing=choosing, name=str(seed))


def _contexts(answers: Sequence[Token], drafts: Sequence[Token]) -> Iterator[Token]:
    """The last two tokens before each sampled position."""
    for answer, draft in zip(answers, drafts, strict=True):
        text = (*PROMPT, *answer, *draft)
        for end in range(len(text) - len(draft), len(text) + 1):
            yield text[end - 2 : end]
