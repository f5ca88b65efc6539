"""Short hands for the tests of the draft room."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from drafters.contract import Drafter, SamplingHint
from specd.engine.drafting import Draft, DraftAsk, Drafting
from tests.support.drafters import PATIENCE_S, BlockingDrafter

GREEDY = SamplingHint(temperature=0.0, seed=1)
LONG_S = 60.0  # a step time or delay that no test lives to see the end of


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Room:
    """A draft room with requests in it, whose texts the test grows as a loop would."""

    def __init__(self, *, max_deadline_s: float = 0.005, **drafters: Drafter) -> None:
        self.clock = Clock()
        self.drafting = Drafting(drafters, clock=self.clock, max_deadline_s=max_deadline_s)
        self.texts: dict[str, list[int]] = {}
        self.chains: dict[str, tuple[str, ...]] = {}

    def begin(self, request_id: str, *chain: str, prompt: Sequence[int] = (1, 2, 3)) -> None:
        self.texts[request_id] = list(prompt)
        self.chains[request_id] = chain
        self.drafting.begin(request_id, self.texts[request_id], GREEDY, chain)
        self.commit(request_id, [4])

    def commit(
        self, request_id: str, tokens: list[int], accepted: int = 0, maker: str | None = None
    ) -> None:
        self.texts[request_id].extend(tokens)
        self.drafting.observe(request_id, tokens, accepted, maker)

    def ask(self, request_id: str, budget: int = 8, grant_s: float | None = None) -> DraftAsk:
        return DraftAsk(
            request_id, self.texts[request_id], budget, self.chains[request_id], grant_s
        )

    async def step(
        self, *request_ids: str, step_time_s: float = 0.0, grant_s: float | None = None
    ) -> tuple[Draft, ...]:
        """One `collect`; without a step time the deadline is the shortest, 1 ms."""
        asks = [self.ask(request_id, grant_s=grant_s) for request_id in request_ids]
        return await self.drafting.collect(asks, step_time_s=step_time_s)

    async def patient_step(self, *request_ids: str) -> tuple[Draft, ...]:
        """One `collect` that waits as long as it takes."""
        return await self.step(*request_ids, grant_s=PATIENCE_S)

    async def lasting_step(self, request_id: str) -> Draft:
        """The draft of one request, waiting as long as it takes."""
        (draft,) = await self.patient_step(request_id)
        return draft


async def until(event: threading.Event) -> None:
    """Wait for a thread to get somewhere."""
    assert await asyncio.to_thread(event.wait, PATIENCE_S)


async def until_free(room: Room, drafter: BlockingDrafter, request_id: str) -> None:
    """Open the gate and wait until the drafter's thread is past every call made before."""
    drafter.gate.set()
    drafter.told.clear()
    room.commit(request_id, [9])
    await until(drafter.told)
