"""Whether calls are admitted: the engine, health and the ready file always agree on it.

Knows the order in which they change and how to wait for the live ones. Invariant: once closed,
nothing is admitted again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import anyio

from specd.engine.generation import EndCause
from specd.engine.loop import Engine


@dataclass(frozen=True, slots=True)
class Drained:
    """How the requests ended that were live when a drain began.

    aborted: those ended with ABORTED. finished: all others.
    """

    finished: int
    aborted: int


class Admission:
    """One per daemon. `tell` publishes whether calls are admitted: health and the ready file."""

    def __init__(self, engine: Engine, tell: Callable[[bool], None]) -> None:
        self._engine = engine
        self._tell = tell
        self._closed = False

    def open(self) -> None:
        """Say that calls are admitted. Raises what `tell` raises."""
        self._tell(True)

    def close(self, reason: str) -> None:
        """Refuse new calls with NotServing and say so; live ones go on. Later calls do nothing."""
        if self._closed:
            return
        self._closed = True
        # Whoever reads SERVING a moment too late is refused, and may retry elsewhere.
        self._engine.refuse_new(reason)
        self._tell(False)

    async def drain(self, timeout_s: float | None) -> Drained:
        """Close, then wait until no request is live.

        After `timeout_s` those that are left end with ABORTED; None waits as long as they take.
        """
        self.close("draining")
        live = self._engine.live()
        with anyio.move_on_after(timeout_s) as patience:
            await self._engine.wait_idle()
        if patience.cancelled_caught:
            self._engine.abort_all()
            await self._engine.wait_idle()
        aborted = sum(generation.end_cause is EndCause.ABORTED for generation in live)
        return Drained(len(live) - aborted, aborted)
