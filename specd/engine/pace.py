"""How fast steps run: what the loop has seen so far.

Invariant: `least_time_s` never promises more time than the fastest step would need.
"""

from __future__ import annotations

# Weight of the newest step in the learned step time, from which drafters get their deadline.
_STEP_TIME_WEIGHT = 0.1
# A short step is mostly overhead and says little about a prompt.
_MIN_POSITIONS = 64


class Pace:
    """step_time_s: seconds of a step, smoothed; 0 before the first."""

    def __init__(self) -> None:
        self.step_time_s = 0.0
        self._least_s_per_position = 0.0

    def learn(self, num_positions: int, seconds: float) -> None:
        """Take a step of so many positions into account."""
        known = self.step_time_s or seconds
        self.step_time_s = known + _STEP_TIME_WEIGHT * (seconds - known)
        if num_positions >= _MIN_POSITIONS:
            seen = seconds / num_positions
            self._least_s_per_position = min(self._least_s_per_position or seen, seen)

    def least_time_s(self, num_tokens: int) -> float:
        """Seconds that a prompt takes when nothing else runs, at best; 0 while unknown."""
        return num_tokens * self._least_s_per_position
