"""Does a row's result depend on what ran beside it? Asked of the core, whole steps at a time.

A short text runs in one piece, in pieces of other lengths, with wrong drafts behind it, and beside
another text; the logits of each position are compared to the bit. Knows nothing of requests.
Invariant: a finding is a fact of this machine and this build, never a tolerance.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from specd.device.core_runner import CoreRunner
from specd.device.probe import ProbeReport
from specd.device.sampler_probe import probe_sampler, same_bits
from specd.engine.padding import pad
from specd.engine.params import SamplingParams
from specd.engine.step_types import Choosing, CleanDraft, PlannedRow
from specd.kv.pages import PAGE_SIZE, RESERVED_PAGES, pages_for

# Long enough for tiles of every width and for two pages; a 1.5B model takes half a second.
LENGTH = 45
_PIECES = (33, 1, 2, 3, 6)
_GREEDY = SamplingParams(temperature=0)


def probe_core(runner: CoreRunner, *, length: int = LENGTH) -> ProbeReport:
    """Compare steps with each other; belongs to the device thread. length: of the text."""
    start = time.perf_counter()
    generator = torch.Generator().manual_seed(0)
    outcomes = [
        *_steps(runner, length, generator),
        *probe_sampler(runner.sampler, runner.config.vocab_size, generator),
    ]
    findings = tuple(finding for finding in outcomes if finding is not None)
    return ProbeReport(len(outcomes), findings, time.perf_counter() - start)


def _steps(runner: CoreRunner, length: int, generator: torch.Generator) -> Iterator[str | None]:
    """One outcome per position and company."""
    most = runner.layout.packed_buckets[-1]
    # Half of the pages for each of two texts; where there is one, the text is a single piece.
    room = max(1, runner.num_pages // 2) * PAGE_SIZE
    length = min(length, most, runner.config.context_length, room)
    vocab = runner.config.vocab_size
    tokens, wrong = torch.randint(vocab, (2, length), generator=generator).tolist()
    whole = _logits(runner, [(tokens, 0, 0)]).clone()
    done = 0
    for piece in itertools.cycle(_PIECES):
        count = min(piece, length - done)
        if count < 1:
            return
        draft = wrong[: min(3, length - done - count)]
        pieces = [(tokens[done : done + count] + draft, done, 0)]
        beside = min(done, 5, most - count - len(draft))
        if beside > 0:
            pieces.insert(0, (wrong[:beside], 0, 1))
        found = _logits(runner, pieces)[max(beside, 0) :]
        for place in range(count):
            agrees = same_bits(found[place], whole[done + place])
            yield (
                None
                if agrees
                else (f"position {done + place} in a step of {count} differs from one of {length}")
            )
        done += count


def _logits(runner: CoreRunner, pieces: list[tuple[list[int], int, int]]) -> Tensor:
    """All positions' logits; pieces of (tokens, first position, which of two texts)."""
    pages = runner.num_pages // 2  # for each of the texts
    rows, drafts, tables = [], [], []
    for tokens, first, text in pieces:
        rows.append(PlannedRow("probe", text, tuple(tokens[:1]), first, True, Choosing(_GREEDY)))
        drafts.append(CleanDraft(tuple(tokens[1:])))  # so that every position is sampled
        begin = RESERVED_PAGES + text * pages
        tables.append(range(begin, begin + pages_for(first + len(tokens))))
    return runner.logits(pad(rows, drafts, tables, runner.layout))
