"""Waiting for a server that is starting, over grpc.health.v1.

Knows the two messages of a health watch and which failures pass by themselves; does not call.

Invariant: a wait ends with SERVING, with an error that waiting cannot cure, or at its time limit.
"""

from __future__ import annotations

import time
from typing import Any

import grpc

from specd_client.calls import Call
from specd_client.declared import message_classes
from specd_client.errors import CallFailed, DeadlineExceeded, NotReady, failure
from specd_client.times import time_limit

SERVICE = "specd.v1.GenerationService"
STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
PAUSE_S = 0.1  # between a watch that broke and the next one
_CLASSES = message_classes(
    "specd_client.health",
    {
        "HealthCheckRequest": {1: ("service", "string")},
        "HealthCheckResponse": {1: ("status", "int32")},
    },
)


class Wait:
    """One wait of at most timeout_s seconds; None has no limit. Raises ValueError for a bad one."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = time_limit("timeout_s", timeout_s)
        self._started_s = time.monotonic()
        self._last = "nobody answers"

    def watch(self) -> Call[bool]:
        """A call whose stream tells whether the server serves, at once and at every change."""
        request = _CLASSES["HealthCheckRequest"](service=SERVICE)
        return Call(
            "/grpc.health.v1.Health/Watch", request, _CLASSES["HealthCheckResponse"], self._serves
        )

    def left_s(self) -> float | None:
        """What is left of the time, None for no limit. Raises DeadlineExceeded for nothing."""
        if self._timeout_s is None:
            return None
        left_s = self._started_s + self._timeout_s - time.monotonic()
        if left_s <= 0:
            raise self._too_late()
        return left_s

    def endure(self, error: CallFailed) -> None:
        """Raises what waiting cannot cure. A server that is not there, or restarts, can come."""
        if isinstance(error, DeadlineExceeded):
            raise self._too_late() from None
        if not isinstance(error, NotReady):
            raise error

    def _serves(self, response: Any) -> bool:
        known = 0 <= response.status < len(STATUSES)
        self._last = STATUSES[response.status] if known else f"status {response.status}"
        return self._last == "SERVING"

    def _too_late(self) -> CallFailed:
        message = f"not ready within {self._timeout_s:g} s: {self._last}"
        return failure(grpc.StatusCode.DEADLINE_EXCEEDED, message)
