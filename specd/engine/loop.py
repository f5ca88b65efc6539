"""The step loop: plan, draft, pad, run, verify, commit.

Owns every request and takes every decision; runs on the event loop and never calls torch. The
device thread is reached through `Device.step` alone, which runs and verifies a padded batch.
Invariant: state changes between steps only, in `_plan` and `_commit` and where ends are dropped,
so that pages of a running step are never given away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from specd.engine.book import Book
from specd.engine.drafting import Draft, Drafting
from specd.engine.facts import EngineStatistics, ModelFacts
from specd.engine.generation import EndCause, Generation
from specd.engine.pace import Pace
from specd.engine.padding import clean_draft, pad
from specd.engine.request import Request
from specd.engine.rows import ask, delta, failure, planned_row, push
from specd.engine.scheduler import Limits, Plan, Share, plan
from specd.engine.step_types import (
    CleanDraft,
    LayoutSpec,
    PaddedBatch,
    PaddedRow,
    RowResult,
    StepResult,
)
from specd.engine.waste import WasteCounter
from specd.errors import DeviceLost, NotServing, OutOfPages, StepFailed

_log = logging.getLogger("specd.engine")


class Device(Protocol):
    """The device thread as the loop sees it."""

    @property
    def layout(self) -> LayoutSpec: ...

    async def step(self, batch: PaddedBatch) -> StepResult: ...

    async def check(self) -> None: ...


class Engine:
    """Serves requests until `run` is cancelled."""

    def __init__(
        self,
        device: Device,
        model: ModelFacts,
        drafting: Drafting,
        *,
        num_pages: int,
        limits: Limits,
        max_waiting: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.drafting = drafting
        self.waste = WasteCounter()
        self.verified_by_drafter: Counter[str] = Counter()  # draft tokens
        self.accepted_by_drafter: Counter[str] = Counter()
        self._device = device
        self._model = model
        self._limits = limits
        self._book = Book(
            drafting,
            model,
            num_pages=num_pages,
            max_rows=limits.max_rows,
            max_waiting=max_waiting,
            clock=clock,
        )
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._steps = 0
        self._end_reason = "the daemon has stopped"
        self.pace = Pace()

    # --- the border: called by the server's handlers, never waits ---

    @property
    def capacity(self) -> int:
        """Positions that the whole KV pool holds."""
        return self._book.pages.capacity

    def expecting(self, request_id: str, num_sequences: int = 1) -> AbstractContextManager[None]:
        """Hold an id for a call whose prompt is not ready yet: it is live for `abort`.

        Raises what `submit` raises, but for OutOfPages.
        """
        return self._book.expecting(request_id, num_sequences)

    def submit(self, generation: Generation) -> None:
        """Queue a generation; its events come through its mailbox.

        Raises:
            NotServing, DuplicateRequest, QueueFull: and nothing has changed.
            OutOfPages: the prompt alone is larger than the KV pool.
        """
        is_aborted = self._book.submit(generation)
        if is_aborted:
            self.abort(generation.request_id)
        self._idle.clear()
        self._wake.set()

    def abort(self, request_id: str) -> bool:
        """End a stream cleanly at the next step; False if no such generation is alive."""
        if self._book.abort_expected(request_id):
            return True
        generation = self._book.find(request_id)
        if generation is None:
            return False
        generation.end_cause = generation.end_cause or EndCause.ABORTED
        self._wake.set()
        return True

    def cancel(self, generation: Generation) -> None:
        """The reader of `generation` is gone. Harmless when it has ended."""
        generation.end_cause = generation.end_cause or EndCause.CANCELLED
        self._wake.set()

    def refuse_new(self, reason: str) -> None:
        """Refuse every later `submit` with NotServing; live generations go on.

        The first reason stays.
        """
        self._book.refusing = self._book.refusing or reason

    def live(self) -> list[Generation]:
        """All generations that have not ended."""
        return self._book.live()

    async def wait_idle(self) -> None:
        """Wait until no generation is live."""
        await self._idle.wait()

    def abort_all(self) -> None:
        """End every stream cleanly at the next step."""
        for generation in self._book.live():
            self.abort(generation.request_id)

    def statistics(self) -> EngineStatistics:
        pages = self._book.pages.statistics()
        return EngineStatistics(
            steps=self._steps,
            running=len(self._book.running),
            waiting=len(self._book.waiting),
            pages_used=pages.used,
            pages_total=pages.total,
            slots_used=self._book.slots_used,
            drafter_sessions=self.drafting.sessions,
        )

    # --- the loop ---

    async def run(self) -> None:
        """Step for as long as there is work, wait otherwise; ends when cancelled.

        Raises:
            DeviceLost: a step failed, and the device cannot do anything else either.
        """
        book = self._book
        try:
            while True:
                book.drop_ended()
                if book.running or book.waiting:
                    await self._guarded_step()
                else:
                    book.check_integrity()
                    self._idle.set()
                    self._wake.clear()
                    await self._wake.wait()
        finally:
            self.refuse_new(self._end_reason)
            for generation in book.live():
                book.fail(generation, NotServing(self._end_reason))
            self._idle.set()

    async def _guarded_step(self) -> None:
        """One step; whatever it raises ends the generations that were part of it and no other."""
        part: list[Request] = []
        try:
            await self._step(part)
        except Exception:
            failed = list(dict.fromkeys(request.generation for request in part))
            failed = failed or self._book.live()
            _log.exception("a step failed; its %d requests end", len(failed))
            for generation in failed:
                self._book.fail(generation, StepFailed())
            await self._check_device()

    async def _check_device(self) -> None:
        try:
            await self._device.check()
        except Exception as error:
            self._end_reason = "the device is lost"
            raise DeviceLost(str(error)) from error

    async def _step(self, part: list[Request]) -> None:
        planned = self._plan()
        part.extend(share.request for share in planned.shares)
        if not part:
            await asyncio.sleep(0)  # only ends and preemptions happened; let their readers run
            return
        drafts = await self._draft(planned.shares)
        batch = self._pad(planned.shares, drafts)
        result = await self._device.step(batch)  # run and verify, on the device thread
        self._commit(planned.shares, drafts, batch, result)

    # --- plan ---

    def _plan(self) -> Plan:
        book = self._book
        planned = plan(book.running, book.waiting, book.pages.num_free, self._limits)
        for request in planned.preempted:
            book.preempt(request)
        for request in planned.failed:
            book.fail(request.generation, OutOfPages(request.known + 1, self.capacity))
        for request in planned.admitted:
            book.admit(request)
        return planned

    # --- draft ---

    async def _draft(self, shares: Sequence[Share]) -> Sequence[Draft | None]:
        """One raw draft per share; None for those that did not ask."""
        asking = [index for index, share in enumerate(shares) if share.allowance > 0]
        drafts: list[Draft | None] = [None] * len(shares)
        if not asking:
            return drafts
        asks = [ask(shares[index]) for index in asking]
        collected = await self.drafting.collect(asks, step_time_s=self.pace.step_time_s)
        for index, draft in zip(asking, collected, strict=True):
            drafts[index] = draft
            shares[index].request.generation.tally.drafted(
                draft.drafter, draft.draft_time_s, draft.late, draft.faults
            )
        return drafts

    # --- pad ---

    def _pad(self, shares: Sequence[Share], drafts: Sequence[Draft | None]) -> PaddedBatch:
        rows, clean, fresh = [], [], []
        for share, draft in zip(shares, drafts, strict=True):
            request = share.request
            cleaned = self._clean(share, draft)
            last = request.computed + share.count + len(cleaned.token_ids)
            fresh.extend(self._book.pages.grow(request.pages, last))
            rows.append(planned_row(share, cleaned.token_ids))
            clean.append(cleaned)
        pages = [share.request.pages for share in shares]
        return pad(rows, clean, pages, self._device.layout, fresh)

    def _clean(self, share: Share, draft: Draft | None) -> CleanDraft:
        if draft is None:
            return CleanDraft()
        allowance = min(share.allowance, self._device.layout.max_draft)
        cleaned = clean_draft(draft.token_ids, allowance, self._model.vocab_size)
        if cleaned.fault is not None and draft.drafter is not None:
            self.drafting.report_fault(draft.drafter)
            share.request.generation.tally.drafted(draft.drafter, 0.0, (), (draft.drafter,))
        structure = share.request.structure
        if structure is None or not cleaned.token_ids:
            return cleaned
        return replace(cleaned, token_ids=structure.legal_prefix(cleaned.token_ids))

    # --- commit ---

    def _commit(
        self,
        shares: Sequence[Share],
        drafts: Sequence[Draft | None],
        batch: PaddedBatch,
        result: StepResult,
    ) -> None:
        self._steps += 1
        self.waste.count(batch)
        self.pace.learn(batch.num_positions, result.device_time_s)
        tail = batch.num_positions - sum(row.span for row in batch.rows)
        for index, share in enumerate(shares):
            row, outcome, draft = batch.rows[index], result.rows[index], drafts[index]
            share.request.computed += share.count
            if share.request.generation.ending:
                continue
            # A row answers for its own pads, the last row for the layout's tail as well.
            pads = row.span - row.count + (tail if index == len(shares) - 1 else 0)
            if not row.samples:
                share.request.generation.tally.padded(pads)
            if outcome is not None:
                maker = None if draft is None else draft.drafter
                self._commit_row(share.request, row, outcome, maker, pads, result.device_time_s)

    def _commit_row(
        self,
        request: Request,
        row: PaddedRow,
        outcome: RowResult,
        maker: str | None,
        pads: int,
        seconds: float,
    ) -> None:
        if outcome.fault is not None:
            self._book.fail(request.generation, failure(request, outcome.fault))
            return
        if request.scoring:
            self._book.score(request, outcome.prompt_logprobs)
        if not row.samples:
            return
        # Accepted draft tokens were inputs of this step: their K and V are in the pages.
        request.computed += outcome.accepted
        committed, ending = push(request, outcome.token_ids)
        accepted = min(outcome.accepted, len(committed))
        request.tokens.extend(committed)
        if request.counts is not None:
            request.counts.append(committed)
        request.generation.tally.verified(maker, row.draft_len, accepted, pads, seconds)
        if maker is not None:
            self.verified_by_drafter[maker] += row.draft_len
            self.accepted_by_drafter[maker] += accepted
        self.drafting.observe(request.request_id, committed, accepted, maker)
        answer = delta(request, row, outcome, committed, accepted, maker)
        request.generation.mailbox.put_nowait(answer)
        if ending is not None:
            self._book.finish(request, ending)
            return
        self._book.pages.rewind(request.pages, request.known)
        if request.structure is not None:
            request.structure.commit(committed)
