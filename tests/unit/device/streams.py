"""Requests decoded over scripted logits, in any steps and company: the loop in short.

The model is a function of the text. A stream runs alone, one token at a time, or with drafts, in
chunks and beside others; what it got is then compared to the bit.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specd.engine.params import SamplingParams
from specd.engine.step_types import (
    Choosing,
    PaddedBatch,
    PlannedRow,
    RowFault,
    RowResult,
    TokenLogprob,
)
from tests.unit.device.batches import (
    ReadyMasks,
    batch_of,
    mask_words,
    planned,
    seen_tokens,
    verified,
)

VOCAB = 37  # more than a word of a mask, and no multiple of a vector
END = 2  # the token that `min_new_tokens` bans
NAN = 7  # the model chokes on what follows it, where a request has bad luck
DEAD_END = 11  # the structure allows nothing behind it


@dataclass(frozen=True)
class Asked:
    """A request. unlucky: the model and the structure may fail it."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    num_tokens: int = 14
    min_new_tokens: int = 0
    structured: bool = False
    top_logprobs: int | None = None
    processed: bool = False
    prompt_logprobs: int | None = None
    unlucky: bool = False


@dataclass
class Stream:
    """What a request has got so far, and how far its text is computed."""

    asked: Asked
    answer: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    fault: RowFault | None = None
    computed: int = 0
    drafted: int = 0
    accepted: int = 0

    @property
    def text(self) -> list[int]:
        return [*self.asked.prompt, *self.answer]

    @property
    def done(self) -> bool:
        return self.fault is not None or len(self.answer) >= self.asked.num_tokens

    @property
    def outcome(self) -> tuple[object, ...]:
        """What a caller gets; nothing of the prompt where there is no first token."""
        prompt = self.prompt_logprobs if self.answer else []
        return self.answer, self.logprobs, prompt, self.fault

    def plan(self, count: int, draft: Sequence[int]) -> PlannedRow:
        """The next `count` tokens of the text; `draft` behind them where they reach its end."""
        asked, text, start = self.asked, self.text, self.computed
        scores = asked.prompt_logprobs is not None
        return planned(
            text[start : start + count],
            start,
            samples=start + count == len(text),
            choosing=self._choosing(draft),
            score_targets=asked.prompt[start + 1 : start + count + 1] if scores else (),
            score_top=asked.prompt_logprobs or 0,
        )

    def _choosing(self, draft: Sequence[int]) -> Choosing:
        asked = self.asked
        masks = None
        if asked.structured:
            masks = ReadyMasks(mask_words(allowed_at(self.text, draft, asked.unlucky), VOCAB))
        seen = seen_tokens(asked.prompt, self.answer) if asked.sampling.penalises else None
        return Choosing(
            asked.sampling,
            seen,
            banned=(END,),
            num_banned=max(0, asked.min_new_tokens - len(self.answer)),
            top_logprobs=asked.top_logprobs,
            processed_logprobs=asked.processed,
            masks=masks,
        )

    def learn(self, row: PlannedRow, draft: Sequence[int], result: RowResult | None) -> None:
        self.computed += len(row.tokens)
        if result is None:
            assert not row.samples and not row.score_targets
            return
        self.fault = result.fault
        chooses = row.samples and not self.fault
        assert len(result.token_ids) == (result.accepted + 1 if chooses else 0)
        wanted = len(result.token_ids) if self.asked.top_logprobs is not None else 0
        assert len(result.logprobs) == wanted
        assert len(result.prompt_logprobs) == (0 if self.fault else len(row.score_targets))
        self.answer += result.token_ids
        self.logprobs += result.logprobs
        self.prompt_logprobs += result.prompt_logprobs
        self.computed += result.accepted
        self.accepted += result.accepted
        self.drafted += len(draft)


def scripted_logits(text: Sequence[int], *, unlucky: bool = False) -> npt.NDArray[np.float32]:
    """The model's answer to a text: few levels, so that ties are common."""
    if unlucky and text[-1] == NAN:
        return np.full(VOCAB, np.nan, np.float32)
    levels = np.random.default_rng([len(text), *text]).normal(0, 8, VOCAB)
    return (np.round(levels) / 4).astype(np.float32)


def allowed_at(text: Sequence[int], draft: Sequence[int], unlucky: bool) -> list[set[int]]:
    """What the structure allows at each sampled position; nothing behind what it forbids."""
    found: list[set[int]] = []
    known = list(text)
    for token in (*draft, None):
        legal = {other for other in range(VOCAB) if (other + known[-1]) % 3}
        broken = (found and known[-1] not in found[-1]) or (unlucky and known[-1] == DEAD_END)
        found.append(set() if broken else legal)
        known.append(token or 0)
    return found


def logits_of(batch: PaddedBatch, streams: Sequence[Stream]) -> Tensor:
    """One row for each wanted position."""
    rows: list[npt.NDArray[np.float32]] = []
    for row, stream in zip(batch.rows, streams, strict=True):
        text = [*stream.text[: row.first_position + row.count - row.draft_len], *row.draft]
        ends = range(row.first_position + 1, row.first_position + 1 + len(row.score_targets))
        samples = range(len(text) - row.num_samples + 1, len(text) + 1)
        unlucky = stream.asked.unlucky
        rows.extend(scripted_logits(text[:end], unlucky=unlucky) for end in (*ends, *samples))
    return torch.from_numpy(np.array(rows, np.float32).reshape(-1, VOCAB))


def step(streams: Sequence[Stream], counts: Sequence[int], drafts: Sequence[list[int]]) -> None:
    """Run and verify one step of all streams; the runner's logits must stay as they were."""
    rows = [
        stream.plan(count, draft)
        for stream, count, draft in zip(streams, counts, drafts, strict=True)
    ]
    batch = batch_of(rows, drafts)
    logits = logits_of(batch, streams)
    before = logits.clone()
    results = verified(logits, batch)
    assert torch.equal(logits.isnan(), before.isnan())
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())
    for stream, row, draft, result in zip(streams, rows, drafts, results, strict=True):
        stream.learn(row, draft, result)


def decoded_plainly(asked: Asked) -> Stream:
    """Alone, one token at a time."""
    stream = Stream(asked)
    while not stream.done:
        step([stream], [len(stream.text) - stream.computed], [[]])
    return stream


def decoded_together(truths: Sequence[Stream], rng: random.Random) -> list[Stream]:
    """The same requests, in steps and chunks at random, with drafts that are partly right."""
    streams = [Stream(truth.asked) for truth in truths]
    while left := [pair for pair in zip(streams, truths, strict=True) if not pair[0].done]:
        some = rng.sample(left, rng.randint(1, len(left)))
        counts, drafts = [], []
        for stream, truth in some:
            rest = len(stream.text) - stream.computed
            counts.append(rng.choice([rest, rng.randint(1, rest)]))
            reaches = counts[-1] == rest
            drafts.append(random_draft(stream, truth.answer, rng) if reaches else [])
        step([stream for stream, _ in some], counts, drafts)
    return streams


def random_draft(stream: Stream, truth: Sequence[int], rng: random.Random) -> list[int]:
    """The true tokens, some of them wrong, and wrong ones behind their end."""
    done = len(stream.answer)
    length = rng.randint(0, min(6, stream.asked.num_tokens - done - 1))
    draft = [*truth[done : done + length], *rng.choices(range(VOCAB), k=length)][:length]
    wrong = rng.choice([0.0, 0.2, 1.0])
    return [rng.randrange(VOCAB) if rng.random() < wrong else token for token in draft]


def random_asked(rng: random.Random) -> Asked:
    """Any combination of what a request can ask for."""
    sampling = SamplingParams(
        temperature=rng.choice([0.0, 0.0, 0.7, 1.0, 2.0]),
        top_k=rng.choice([0, 0, 1, 5, VOCAB]),
        top_p=rng.choice([1.0, 1.0, 0.4, 0.9]),
        min_p=rng.choice([0.0, 0.0, 0.1]),
        seed=rng.getrandbits(64),
    )
    if rng.random() < 0.5:
        sampling = replace(
            sampling,
            repetition_penalty=rng.choice([1.0, 1.3, 0.8]),
            presence_penalty=rng.choice([0.0, 0.5, -0.5]),
            frequency_penalty=rng.choice([0.0, 0.7, -0.3]),
        )
    if rng.random() < 0.5:
        ids = sorted(rng.sample(range(VOCAB), 4))
        sampling = replace(sampling, logit_bias=tuple((token, rng.gauss(0, 3)) for token in ids))
    return Asked(
        tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))),
        sampling,
        min_new_tokens=rng.choice([0, 0, 5]),
        structured=rng.random() < 0.4,
        top_logprobs=rng.choice([None, 0, 3, VOCAB]),
        processed=rng.random() < 0.5,
        prompt_logprobs=rng.choice([None, 0, 2]),
        unlucky=rng.random() < 0.2,
    )
