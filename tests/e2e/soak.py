"""Many streams at once, many of which leave early; whoever stays must get its solo tokens.

Knows the public protocol alone. Which streams leave, when and how, is drawn from a fixed seed; how
far each has come by then is up to the machine.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specd_client import Client, DeadlineExceeded, Finished

from tests.e2e.calls import answer, check_sums, quiet, wait_for
from tests.support.daemon import Daemon, resident_bytes

NUM_STREAMS = 32
CUMULATIVE = ("steps", "real_positions", "pad_positions")
LEAVING = ("stay", "stay", "stay", "cancel", "cancel", "abort", "deadline")


@dataclass(frozen=True)
class Case:
    """A request and its plain solo tokens."""

    prompt: str
    options: Mapping[str, Any]
    token_ids: tuple[int, ...]


@dataclass
class SoakReport:
    """What happened. outcomes: streams by how they ended. rss_growth: bytes."""

    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    draft_tokens: int = 0
    accepted: int = 0
    steps: int = 0
    rss_growth: int = 0


async def solo_cases(
    client: Client, prompts: Sequence[str], max_new_tokens: int
) -> tuple[Case, ...]:
    """Every prompt, greedy and sampled, run alone and plainly."""
    cases = []
    for index, prompt in enumerate(prompts):
        for sampling in ({"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9, "seed": index}):
            options = sampling | {"max_new_tokens": max_new_tokens}
            run = await answer(client, prompt, speculation=False, **options)
            cases.append(Case(prompt, options, run.token_ids))
    return tuple(cases)


class Soak:
    """One run of the soak against a daemon that nobody else uses."""

    def __init__(
        self, client: Client, cases: Sequence[Case], draw_drafters: Callable[[random.Random], Any]
    ) -> None:
        """`draw_drafters` gives the `drafters` option of a stream."""
        self.report = SoakReport()
        self._client = client
        self._cases = cases
        self._draw_drafters = draw_drafters
        self._random = random.Random(20)
        self._num_started = 0

    async def run(self, daemon: Daemon, seconds: float) -> SoakReport:
        """Keep all streams busy for so long; then nothing may be left. Raises AssertionError."""
        before = (await self._client.server_info()).counters
        rss = resident_bytes(daemon.pid)
        started_s = time.monotonic()
        end_s = started_s + seconds
        async with asyncio.TaskGroup() as tasks:
            for _ in range(NUM_STREAMS):
                tasks.create_task(self._keep_busy(end_s))
            tasks.create_task(self._watch(end_s))
        await quiet(self._client)
        await wait_for(self._client, tasks=before.tasks)
        after = (await self._client.server_info()).counters
        self.report.seconds = time.monotonic() - started_s
        self.report.steps = after.steps - before.steps
        self.report.rss_growth = resident_bytes(daemon.pid) - rss
        return self.report

    async def _keep_busy(self, end_s: float) -> None:
        while time.monotonic() < end_s:
            way = self._random.choice(LEAVING)
            await getattr(self, f"_{way}")(self._random.choice(self._cases))
            self.report.outcomes[way] += 1

    async def _watch(self, end_s: float) -> None:
        """Counters that count up never go down."""
        last = (await self._client.server_info()).counters
        while time.monotonic() < end_s:
            await asyncio.sleep(0.1)
            now = (await self._client.server_info()).counters
            for name in CUMULATIVE:
                assert getattr(now, name) >= getattr(last, name)
            last = now

    def _options(self, case: Case) -> dict[str, Any]:
        return {**case.options, "drafters": self._draw_drafters(self._random)}

    async def _stay(self, case: Case) -> None:
        options = {"return_token_ids": True, "return_steps": True, **self._options(case)}
        run = await self._client.generate(case.prompt, **options)
        assert run.token_ids == case.token_ids
        check_sums(run)
        total = run.speculation.total
        self.report.tokens += len(run.token_ids)
        self.report.draft_tokens += total.draft_tokens
        self.report.accepted += total.accepted_draft_tokens

    async def _cancel(self, case: Case) -> None:
        """Leave after a random number of events; some before the first."""
        stream = self._client.stream(case.prompt, **self._options(case))
        num_events = self._random.randrange(6)
        async with stream:
            async for _ in stream:
                if num_events == 0:
                    break
                num_events -= 1

    async def _abort(self, case: Case) -> None:
        """Abort after a random number of events; the stream has to end well all the same."""
        self._num_started += 1
        name = f"soak-{self._num_started}"
        stream = self._client.stream(case.prompt, request_id=name, **self._options(case))
        num_events = self._random.randrange(6)
        events = []
        async for event in stream:
            events.append(event)
            if len(events) == num_events + 1:
                await self._client.abort(name)
        assert isinstance(events[-1], Finished)

    async def _deadline(self, case: Case) -> None:
        stream = self._client.stream(
            case.prompt, timeout_s=self._random.uniform(0.001, 0.3), **self._options(case)
        )
        try:
            async for _ in stream:
                pass
        except DeadlineExceeded:
            pass
