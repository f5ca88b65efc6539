"""Rows of logits of a whole model, computed one position at a time and in every other way.

The reference is a text of the model's own greedy tokens behind a prompt, alone, one position a
step. Knows a runner and ids; nothing of requests, drafters or sampling. Runs on the device thread.
Invariant: every comparison computes its texts anew, and compares every row that both sampled.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from specd.device.runner import Runner
from specd.device.texts import (
    Feeder,
    Part,
    Text,
    differing,
    random_chunks,
    random_ids,
    shared_positions,
)
from specd.doctor.finding import Finding, joined
from specd.errors import NonFiniteLogits

# Multiples of 128 and of the page size lie inside the answers; one prompt is two chunks for many.
PROMPT_LENGTHS = (100, 230)
NUM_NEW = 45
_LONGEST_CHUNK = 120
_ANSWER_CHUNKS = (6, 20, NUM_NEW)  # the longest chunk of an answer, one pass over the texts each
_NEIGHBOUR_LENGTHS = (20, 60)
_WIDEST = 16


def prompt_lengths(context_length: int) -> tuple[int, ...]:
    """Lengths of prompts whose texts, with wrong drafts behind them, fit the context."""
    room = context_length - NUM_NEW - _WIDEST
    return tuple(length for length in PROMPT_LENGTHS if length <= room)


class Bits:
    """The reference texts of a runner, and comparisons with them."""

    def __init__(self, runner: Runner, prompts: Sequence[Sequence[int]]) -> None:
        """Computes the references. Raises NonFiniteLogits where they are no numbers."""
        self._feeder = Feeder(runner)
        self._prompts = [len(prompt) for prompt in prompts]
        self._wanted = [self._feeder.generate(prompt, NUM_NEW) for prompt in prompts]
        if not all(row.isfinite().all() for text in self._wanted for row in text.logits.values()):
            raise NonFiniteLogits

    def comparisons(self) -> tuple[Callable[[random.Random], Finding], ...]:
        """All that are below; each takes random choices."""
        return self.alone, self.in_company, self.as_prompts

    def alone(self, rng: random.Random) -> Finding:
        """Each text alone, in random widths with wrong drafts behind them."""
        texts = []
        for wanted, prompt in zip(self._wanted, self._prompts, strict=True):
            text = Text(wanted.ids)
            self._feeder.run([Part(text, prompt, chunk=True)])
            self._feeder.random_widths([text], rng, widest=_WIDEST)
            texts.append(text)
        return self._finding("random widths, wrong drafts behind", texts)

    def in_company(self, rng: random.Random) -> Finding:
        """All texts side by side and beside others, their prompts in random chunks."""
        texts = [Text(wanted.ids) for wanted in self._wanted]
        for text, prompt in zip(texts, self._prompts, strict=True):
            for size in random_chunks(prompt, rng, longest=_LONGEST_CHUNK):
                self._feeder.run([Part(text, size, chunk=True)])
        vocab = self._feeder.runner.config.vocab_size
        shortest = min(len(text.ids) for text in texts)
        others = [
            Text(random_ids(vocab, min(length, shortest), seed=rng.getrandbits(32)))
            for length in _NEIGHBOUR_LENGTHS
        ]
        self._feeder.random_widths([*texts, *others], rng, widest=_WIDEST)
        return self._finding("the same among neighbours, prompts in chunks", texts)

    def as_prompts(self, rng: random.Random) -> Finding:
        """The answers as part of a prompt, as in the next turn and behind a preemption."""
        findings = []
        for longest in _ANSWER_CHUNKS:
            texts = []
            for wanted, prompt in zip(self._wanted, self._prompts, strict=True):
                chunks = random_chunks(prompt, rng, longest=_LONGEST_CHUNK)
                chunks += random_chunks(NUM_NEW, rng, longest=longest)
                texts.append(self._feeder.in_chunks(wanted.ids, chunks))
            findings.append(self._finding("answers computed as prompts", texts))
        return joined(findings)[0]

    def _finding(self, name: str, texts: Sequence[Text]) -> Finding:
        compared = differences = 0
        first = None
        for text, wanted, prompt in zip(texts, self._wanted, self._prompts, strict=True):
            shared = shared_positions(text, wanted, start=prompt - 1)
            compared += len(shared)
            differences += differing(text, wanted, start=prompt - 1)
            first = first or _first(text, wanted, shared)
        return Finding("logits", name, compared, "rows", differences, first)


def _first(text: Text, wanted: Text, shared: Sequence[int]) -> str | None:
    for at in shared:
        apart = (text.logits[at] - wanted.logits[at]).abs()
        if apart.any():
            return (
                f"position {at} of a text of {len(wanted.ids)}: {int(apart.count_nonzero())} of "
                f"{len(apart)} logits differ, by up to {float(apart.max()):.2g}"
            )
    return None
