"""Keeps a drafter that fails again and again from costing anything.

Knows results and the time, not what a drafter is. Invariant: between opening and the end of the
cool-down `allows` is False; after it, asking is a probe, and the probe's result decides.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable

_log = logging.getLogger("specd.drafting")

THRESHOLD = 3  # consecutive failures that open
FIRST_COOLDOWN_S = 1.0
LONGEST_COOLDOWN_S = 30.0


class _State(enum.Enum):
    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class Breaker:
    """Opens after `THRESHOLD` failures in a row; a cool-down later one probe may close it.

    The cool-down doubles with each failed probe, to at most `LONGEST_COOLDOWN_S`.
    """

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name = name
        self._clock = clock
        self._state = _State.CLOSED
        self._num_failures = 0
        self._cooldown_s = FIRST_COOLDOWN_S
        self._retry_at = 0.0

    @property
    def is_open(self) -> bool:
        """True from the failure that opened it to the success that closes it, probe included."""
        return self._state is not _State.CLOSED

    def allows(self) -> bool:
        """Return whether to ask now; a yes while open turns the next result into a probe's."""
        if self._state is _State.OPEN and self._clock() >= self._retry_at:
            self._state = _State.PROBING
            _log.info("drafter %s: probing after %g s", self._name, self._cooldown_s)
        return self._state is not _State.OPEN

    def failure(self) -> None:
        """One more failure in a row. While open and not probed it says nothing new."""
        if self._state is _State.OPEN:
            return
        self._num_failures += 1
        if self._state is _State.PROBING:
            self._cooldown_s = min(2 * self._cooldown_s, LONGEST_COOLDOWN_S)
            self._open("its probe failed")
        elif self._num_failures >= THRESHOLD:
            self._open(f"{self._num_failures} failures in a row")

    def success(self) -> None:
        """The row of failures is over; a probe that succeeds closes the breaker."""
        self._num_failures = 0
        if self._state is _State.PROBING:
            self._state = _State.CLOSED
            self._cooldown_s = FIRST_COOLDOWN_S
            _log.warning("drafter %s: works again and is asked as before", self._name)

    def _open(self, why: str) -> None:
        self._state = _State.OPEN
        self._retry_at = self._clock() + self._cooldown_s
        _log.warning("drafter %s: not asked for %g s (%s)", self._name, self._cooldown_s, why)
