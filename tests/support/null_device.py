"""A device without a model: its next token is a pure function of (seed, position, tokens before).

Where a request penalises, the counts that its row carries decide too; what is banned, or not
allowed by a mask, is not chosen.
Log probabilities are such functions as well, of the tokens before and the token alone.

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
    SeenTokens,
    StepResult,
    TokenLogprob,
    Words,
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

    def continuation(
        self,
        seed: int,
        prompt: Sequence[int],
        num_tokens: int,
        *,
        penalises: bool = False,
        banned: Sequence[int] = (),
        num_banned: int = 0,
    ) -> list[int]:
        """The first `num_tokens` that a request gets, whatever serves it."""
        text = list(prompt)
        digest = self.digest(text)
        salt = sum(map(prompt_salt, set(prompt))) if penalises else 0
        for index in range(num_tokens):
            bans = banned if index < num_banned else ()
            text.append(self.choose(seed, len(text), digest, salt, bans))
            digest = self.digest(text[-1:], digest)
            salt += answer_salt(text[-1]) if penalises else 0
        return text[len(prompt) :]

    def digest(self, tokens: Sequence[int], start: int = 0) -> int:
        """A hash of all tokens in order, continued from `start`."""
        digest = start
        for token in tokens:
            digest = mix(digest * FACTOR + token + 1)
        return digest

    def choose(
        self,
        seed: int,
        position: int,
        digest: int,
        salt: int = 0,
        banned: Sequence[int] = (),
        allowed: Sequence[int] | None = None,
    ) -> int:
        """`allowed`: the only ids that may be chosen, ascending; None for all."""
        value = mix(mix(seed + 1) ^ mix(position + FACTOR) ^ digest ^ (mix(salt) if salt else 0))
        if allowed is not None:
            return allowed[value % len(allowed)]
        while (token := self._token_of(value)) in banned:
            value = mix(value + FACTOR)
        return token

    def logprob(self, digest: int, token: int, num_alternatives: int) -> TokenLogprob:
        """That of `token` behind the tokens of this digest."""
        value = mix(digest ^ mix(token + 3))
        best = tuple((token + n, -0.5 * n) for n in range(num_alternatives))
        return TokenLogprob(token, -(value % 4096) / 64, 1 + value % 100, best)

    def prompt_logprobs(self, prompt: Sequence[int], num_alternatives: int) -> list[TokenLogprob]:
        """What `Started` tells."""
        found, digest = [TokenLogprob(prompt[0], None, None)], 0
        for token, following in pairwise(prompt):
            digest = self.digest([token], digest)
            found.append(self.logprob(digest, following, num_alternatives))
        return found

    def _token_of(self, value: int) -> int:
        if self._eos_every and value % self._eos_every == 0:
            return self._eos_id
        return ALPHABET[(value >> 32) % len(ALPHABET)]


def prompt_salt(token: int) -> int:
    return mix(token + 7)


def answer_salt(token: int) -> int:
    return mix(token + 11)


class NullDevice:
    """The outside device behind the `Device` protocol.

    batches: all that ran. results: what was found in each. during: awaited while a step is under
    way; what it raises, the step raises. poisoned: ids of requests whose logits are not finite.
    lost: it can do nothing more.
    """

    def __init__(self, model: NullModel, layout: LayoutSpec, *, num_pages: int) -> None:
        self.layout = layout
        self.model = model
        self.batches: list[PaddedBatch] = []
        self.results: list[tuple[RowResult | None, ...]] = []
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
        self.results.append(results)
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
        scores = self._scores(row, text)
        if row.request_id in self.poisoned and (row.samples or scores):
            return RowResult(accepted=0, token_ids=(), fault=RowFault.NOT_FINITE)
        if not row.samples:
            return RowResult(0, (), prompt_logprobs=scores) if scores else None
        masks = None if row.choosing.masks is None else row.choosing.masks.result()
        if masks is not None and not masks[0].any():
            return RowResult(accepted=0, token_ids=(), fault=RowFault.NO_MASK)
        found, logprobs = self._sample(row, text, base, masks)
        self._computed[row.request_id] = base + len(found) - 1
        return RowResult(len(found) - 1, found, logprobs, scores)

    def _sample(
        self, row: PaddedRow, text: list[int], base: int, masks: Words | None
    ) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
        """Tokens up to the first that no draft token equals; as many log probabilities, or none."""
        choosing, model = row.choosing, self.model
        digest, salt = model.digest(text[:base]), _salt(choosing.seen, text[:base])
        found, logprobs = list[int](), list[TokenLogprob]()
        for position in range(base, len(text) + 1):
            banned = choosing.banned if len(found) < choosing.num_banned else ()
            allowed = None if masks is None else ids_of(masks[len(found)])
            seed = choosing.sampling.seed
            found.append(model.choose(seed, position, digest, salt, banned, allowed))
            if choosing.top_logprobs is not None:
                logprobs.append(model.logprob(digest, found[-1], choosing.top_logprobs))
            if position == len(text) or text[position] != found[-1]:
                break
            digest = model.digest([text[position]], digest)
            salt += answer_salt(text[position]) if choosing.seen is not None else 0
        return tuple(found), tuple(logprobs)

    def _scores(self, row: PaddedRow, text: list[int]) -> tuple[TokenLogprob, ...]:
        digest, scores = self.model.digest(text[: row.first_position]), []
        for token, target in zip(text[row.first_position :], row.score_targets, strict=False):
            digest = self.model.digest([token], digest)
            scores.append(self.model.logprob(digest, target, row.score_top))
        return tuple(scores)


def ids_of(mask: Words) -> list[int]:
    """What a mask allows, in ascending order."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    found: list[int] = np.flatnonzero(bits).tolist()
    return found


def _salt(seen: SeenTokens | None, text: list[int]) -> int:
    """What the counts of a row come to; raises where they are not of this text."""
    if seen is None:
        return 0
    ids = seen.ids.tolist()
    require(ids == list(dict.fromkeys(text)), "other tokens were seen than are known")
    require(dict(seen.places) == {token: n for n, token in enumerate(ids)}, "places of tokens")
    facts = zip(ids, seen.in_prompt.tolist(), seen.counts.tolist(), strict=True)
    return sum(prompt_salt(t) * known + answer_salt(t) * count for t, known, count in facts)


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
        scored = len(row.score_targets)
        require(row.sample_offset == len(samples) + scored, f"sample offset of {row.request_id}")
        require(scored <= row.count - row.draft_len, f"{row.request_id} scores its draft")
        samples.extend(range(row.offset, row.offset + scored))
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
