"""A device without a model: its next token is a pure function of (seed, position, tokens before).

It keeps a fake KV cache of what was written to each slot and computes from what it reads there
through the row's pages, so a wrong rewind, a page given twice or stale KV gives a wrong token.
Every batch is checked against the promises of `step_types`; what breaks one is kept in
`violations` as well as raised, since the loop turns what a step raises into a failed request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from specd.engine.step_types import (
    LayoutSpec,
    PaddedBatch,
    PaddedRow,
    RowFault,
    RowResult,
    StepResult,
)
from specd.kv.pages import PAGE_SIZE, RESERVED_PAGES, SCRATCH_PAGE, pages_for

MASK = 2**64 - 1
FACTOR = 0x9E3779B97F4A7C15
# Few ids, so that drafts are right by chance too; id 0 and parts of characters on purpose.
ALPHABET = (0, 97, 98, 99, 32, 226, 130, 172)


class IllegalBatch(Exception):
    """A batch that breaks a promise."""


def mix(value: int) -> int:
    """A 64-bit finalizer: every input bit reaches every output bit."""
    value = ((value & MASK) ^ ((value & MASK) >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


class NullModel:
    """The function. `eos_id` comes once in `eos_every` tokens on average, never where it is 0."""

    def __init__(self, *, eos_id: int = 0, eos_every: int = 0) -> None:
        self._eos_id = eos_id
        self._eos_every = eos_every

    def next_token(self, seed: int, tokens: Sequence[int]) -> int:
        """The token behind `tokens`."""
        return self.choose(seed, len(tokens), self.digest(tokens))

    def continuation(self, seed: int, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """The first `num_tokens` that a request gets, whatever serves it."""
        text = list(prompt)
        digest = self.digest(text)
        for _ in range(num_tokens):
            text.append(self.choose(seed, len(text), digest))
            digest = mix(digest * FACTOR + text[-1] + 1)
        return text[len(prompt) :]

    def digest(self, tokens: Sequence[int], start: int = 0) -> int:
        """A hash of all tokens in order, continued from `start`."""
        digest = start
        for token in tokens:
            digest = mix(digest * FACTOR + token + 1)
        return digest

    def choose(self, seed: int, position: int, digest: int) -> int:
        value = mix(mix(seed + 1) ^ mix(position + FACTOR) ^ digest)
        if self._eos_every and value % self._eos_every == 0:
            return self._eos_id
        return ALPHABET[(value >> 32) % len(ALPHABET)]


class NullDevice:
    """The outside device behind the `Device` protocol.

    batches: all that ran. during: awaited while a step is under way; what it raises, the step
    raises. poisoned: ids of requests whose logits are not finite. lost: it can do nothing more.
    """

    def __init__(self, model: NullModel, layout: LayoutSpec, *, num_pages: int) -> None:
        self.layout = layout
        self.model = model
        self.batches: list[PaddedBatch] = []
        self.violations: list[str] = []
        self.during: Callable[[PaddedBatch], Awaitable[None]] | None = None
        self.poisoned: set[str] = set()
        self.lost = False
        self._num_pages = num_pages
        size = (num_pages + RESERVED_PAGES) * PAGE_SIZE
        self._kv_tokens = np.full(size, -1, np.int64)
        self._kv_positions = np.full(size, -1, np.int64)
        self._tables: dict[str, tuple[int, ...]] = {}
        self._computed: dict[str, int] = {}

    async def step(self, batch: PaddedBatch) -> StepResult:
        """Check, write KV, let the event loop do something else, then sample from what KV holds."""
        try:
            check_layout(batch, self.layout)
            self._check_pages(batch)
            self._write(batch)
            results = tuple(self._verify(row) for row in batch.rows)
        except IllegalBatch as error:
            self.violations.append(str(error))
            raise
        self.batches.append(batch)
        await asyncio.sleep(0)
        if self.during is not None:
            await self.during(batch)
        return StepResult(results, device_time_s=0.001)

    async def check(self) -> None:
        if self.lost:
            raise RuntimeError("the device is gone")

    def _check_pages(self, batch: PaddedBatch) -> None:
        used = [page for row in batch.rows for page in row.pages]
        fresh = set(batch.fresh_pages)
        require(len(set(used)) == len(used), f"a page is shared: {used}")
        require(fresh <= set(used), "a fresh page belongs to no row")
        require(len(fresh) == len(batch.fresh_pages), "a page is fresh twice")
        legal = range(RESERVED_PAGES, RESERVED_PAGES + self._num_pages)
        require(all(page in legal for page in used), f"a page is out of range: {used}")
        slots = [row.slot for row in batch.rows]
        require(len(set(slots)) == len(slots) and min(slots) >= 0, f"a slot is shared: {slots}")
        for row in batch.rows:
            self._check_row(row, fresh)

    def _check_row(self, row: PaddedRow, fresh: set[int]) -> None:
        who = row.request_id
        old = self._tables.get(who, ()) if row.first_position else ()
        computed = self._computed.get(who, 0) if row.first_position else 0
        require(
            row.first_position == computed,
            f"{who} goes on at {row.first_position} and has {computed} computed",
        )
        for index, page in enumerate(row.pages):
            kept = index < len(old) and old[index] == page and page not in fresh
            need_old = index < pages_for(computed)
            require(kept or (page in fresh and not need_old), f"{who} has page {page} from nowhere")
        need = pages_for(row.first_position + row.count)
        require(len(row.pages) == need, f"{who} has {len(row.pages)} pages and needs {need}")

    def _write(self, batch: PaddedBatch) -> None:
        for page in batch.fresh_pages:
            slots = slice(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)
            self._kv_tokens[slots] = self._kv_positions[slots] = -1
        self._kv_tokens[batch.kv_slots] = batch.tokens
        self._kv_positions[batch.kv_slots] = batch.positions

    def _verify(self, row: PaddedRow) -> RowResult | None:
        """Read the row's text back from KV, and accept draft tokens by the one rule."""
        end = row.first_position + row.count
        slots = slots_of(row.pages, np.arange(end))
        require(
            bool((self._kv_positions[slots] == np.arange(end)).all()),
            f"{row.request_id} reads positions {self._kv_positions[slots].tolist()}",
        )
        text: list[int] = self._kv_tokens[slots].tolist()
        base = end - row.draft_len
        self._tables[row.request_id] = row.pages
        self._computed[row.request_id] = base
        if not row.samples:
            return None
        if row.request_id in self.poisoned:
            return RowResult(accepted=0, token_ids=(), fault=RowFault.NOT_FINITE)
        digest, found = self.model.digest(text[:base]), list[int]()
        for position in range(base, end + 1):
            found.append(self.model.choose(row.choosing.sampling.seed, position, digest))
            if position == end or text[position] != found[-1]:
                break
            digest = self.model.digest([text[position]], digest)
        self._computed[row.request_id] = base + len(found) - 1
        return RowResult(len(found) - 1, tuple(found))


def slots_of(pages: Sequence[int], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The KV slot of each text position."""
    table = np.asarray(pages, np.int64)
    return table[positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE


def check_layout(batch: PaddedBatch, layout: LayoutSpec) -> None:
    """Raise IllegalBatch unless every row lies where `step_types` says, and pads harm nobody."""
    total = batch.num_positions
    require(len(batch.positions) == len(batch.kv_slots) == total, "arrays of unequal length")
    require(_bucket_size(batch.bucket, layout) == total, f"{batch.bucket} has {total} positions")
    real = np.zeros(total, bool)
    samples: list[int] = []
    for row in batch.rows:
        here = slice(row.offset, row.offset + row.count)
        require(1 <= row.count <= row.span, f"{row.request_id} has count {row.count}")
        require(row.offset + row.span <= total, f"{row.request_id} lies beyond the bucket")
        require(not real[here].any(), f"{row.request_id} lies on another row")
        real[here] = True
        text = row.first_position + np.arange(row.count)
        require(np.array_equal(batch.positions[here], text), f"positions of {row.request_id}")
        require(np.array_equal(batch.kv_slots[here], slots_of(row.pages, text)), "kv slots")
        drafted = batch.tokens[here][row.count - row.draft_len :].tolist()
        require(drafted == list(row.draft), f"the draft of {row.request_id} is not at its end")
        require(row.sample_offset == len(samples), f"sample offset of {row.request_id}")
        end = row.offset + row.count
        samples.extend(range(end - row.draft_len - 1, end) if row.samples else ())
    require(batch.sample_index.tolist() == samples, "sample_index")
    scratch = batch.kv_slots[~real] // PAGE_SIZE
    require(bool((scratch == SCRATCH_PAGE).all()), "a pad writes outside the scratch page")
    spans = sorted((row.offset, row.span) for row in batch.rows)
    require(all(a + n <= b for (a, n), (b, _) in pairwise(spans)), "spans overlap")


def _bucket_size(bucket: str, layout: LayoutSpec) -> int:
    """Flat positions of a graph key; raises if the layout has no such shape."""
    total = 0
    for part in bucket.split("+"):
        if part.startswith("packed:"):
            size = int(part.removeprefix("packed:"))
            require(size in layout.packed_buckets, f"no bucket {bucket}")
            total += size
        else:
            rows, width = map(int, part.split("x"))
            require(rows in layout.row_buckets and width in layout.widths, f"no bucket {bucket}")
            total += rows * width
    return total


def require(condition: bool, problem: str) -> None:
    """Raise IllegalBatch if a promise is broken."""
    if not condition:
        raise IllegalBatch(problem)
