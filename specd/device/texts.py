"""Texts that are fed through a runner by hand, in any widths and company: how bits are compared.

A `Text` knows its ids beforehand; `Feeder.run` computes some of them as one step and keeps the
logits behind them. True ids ride as a draft where the logits of every position are wanted: to the
runner a position is a position, whoever proposed it. Knows nothing of requests or drafters.
Invariant: a text's logits are copies, so that no later step changes them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specd.device.runner import Runner
from specd.engine.padding import pad
from specd.engine.params import SamplingParams
from specd.engine.step_types import Choosing, CleanDraft, PaddedBatch, PlannedRow
from specd.kv.pages import PageAllocator

_GREEDY = Choosing(SamplingParams(temperature=0))


@dataclass
class Text:
    """Known ids, how many of them are computed, and the pages that hold those.

    logits: text position -> the row of logits behind it, of every position that was sampled.
    """

    ids: Sequence[int]
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    logits: dict[int, Tensor] = field(default_factory=dict)

    @property
    def left(self) -> int:
        return len(self.ids) - self.computed


@dataclass(frozen=True)
class Part:
    """The share of one text in a step: `count` true ids, then wrong ones behind them.

    chunk: the true ids run as known tokens, so that only the last is sampled.
    """

    text: Text
    count: int
    wrong: tuple[int, ...] = ()
    chunk: bool = False


class Feeder:
    """A runner with an allocator of its own. All methods belong to the device thread."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.pages = PageAllocator(runner.num_pages)

    def batch(self, parts: Sequence[Part]) -> PaddedBatch:
        """Lay out a step; pages are taken, nothing runs."""
        rows, drafts, fresh = [], [], []
        for number, part in enumerate(parts):
            text, start = part.text, part.text.computed
            ids = tuple(text.ids[start : start + part.count])
            known = ids if part.chunk else ids[:1]
            rows.append(PlannedRow(f"{number}", number, known, start, True, _GREEDY))
            drafts.append(CleanDraft((*ids[len(known) :], *part.wrong)))
            last = start + part.count + len(part.wrong)
            fresh += self.pages.grow(text.pages, last)
        pages = [part.text.pages for part in parts]
        return pad(rows, drafts, pages, self.runner.layout, fresh)

    def run(self, parts: Sequence[Part]) -> None:
        """Compute the parts as one step; each text learns its logits and forgets its wrong ids."""
        logits = self.runner.logits(self.batch(parts))
        at = 0
        for part in parts:
            text, sampled = part.text, 1 if part.chunk else part.count
            text.computed += part.count
            for row in range(sampled):
                text.logits[text.computed - sampled + row] = logits[at + row].clone()
            at += sampled + len(part.wrong)
            self.pages.rewind(text.pages, text.computed)

    def close(self, text: Text) -> None:
        """Give its pages back."""
        self.pages.release(text.pages)

    def one_at_a_time(self, ids: Sequence[int], *, prefix: int = 0) -> Text:
        """All positions alone; the first `prefix` in one chunk."""
        text = Text(ids)
        if prefix:
            self.run([Part(text, prefix, chunk=True)])
        while text.left:
            self.run([Part(text, 1)])
        self.close(text)
        return text

    def generate(self, prompt: Sequence[int], count: int) -> Text:
        """The prompt as one chunk, then `count` greedy tokens, one position at a time."""
        ids = list(prompt)
        text = Text(ids)
        self.run([Part(text, len(ids), chunk=True)])
        for _ in range(count):
            ids.append(int(text.logits[len(ids) - 1].argmax()))
            self.run([Part(text, 1)])
        self.close(text)
        return text

    def in_chunks(self, ids: Sequence[int], chunks: Iterable[int]) -> Text:
        """All positions in chunks of these sizes, as a prompt."""
        text = Text(ids)
        for size in chunks:
            self.run([Part(text, min(size, text.left), chunk=True)])
        self.close(text)
        return text

    def random_widths(self, texts: Sequence[Text], rng: random.Random, *, widest: int = 16) -> None:
        """Finish all texts side by side, in random widths with wrong drafts behind the true ids."""
        vocab = self.runner.config.vocab_size
        while any(text.left for text in texts):
            parts = []
            for text in texts:
                if text.left:
                    width = rng.randint(1, widest)
                    count = rng.randint(1, min(width, text.left))
                    room = min(width - count, self.runner.config.context_length - 1)
                    parts.append(Part(text, count, tuple(rng.choices(range(vocab), k=room))))
            rng.shuffle(parts)
            self.run(parts)
        for text in texts:
            self.close(text)


def random_ids(vocab: int, count: int, seed: int) -> list[int]:
    """Ids that mean nothing together."""
    rng = random.Random(seed)
    return [rng.randrange(vocab) for _ in range(count)]


def random_chunks(total: int, rng: random.Random, *, longest: int = 60) -> list[int]:
    """Sizes that sum to `total`."""
    sizes: list[int] = []
    while total:
        sizes.append(rng.randint(1, min(longest, total)))
        total -= sizes[-1]
    return sizes


def shared_positions(found: Text, wanted: Text, *, start: int = 0) -> list[int]:
    """The positions from `start` that were sampled in both, ascending."""
    return sorted(at for at in found.logits.keys() & wanted.logits.keys() if at >= start)


def differing(found: Text, wanted: Text, *, start: int = 0) -> int:
    """How many rows from position `start`, sampled in both, differ in any bit."""
    shared = shared_positions(found, wanted, start=start)
    assert shared
    return sum(not torch.equal(found.logits[at], wanted.logits[at]) for at in shared)
