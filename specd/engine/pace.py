"""How fast steps run: what the loop has seen so far.

Invariant: `hopeless_s` calls no prompt hopeless for ever: each time it does, it doubts itself more.
"""

from __future__ import annotations

# Weight of the newest step in the learned step time, from which drafters get their deadline.
_STEP_TIME_WEIGHT = 0.1
# A short step is mostly overhead and says little about a prompt.
_MIN_POSITIONS = 64
# The fastest step seen may have been a slow one: what is refused needs twice the time it has.
_CAUTION = 0.5
_DOUBT = 0.8


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

    def hopeless_s(self, num_tokens: int, time_left_s: float) -> float | None:
        """The seconds that a prompt takes at best, if `time_left_s` is far too little for it.

        None where it may be enough, and while nothing is known.
        """
        needed_s = num_tokens * self._least_s_per_position
        if time_left_s > needed_s * _CAUTION:
            return None
        # A machine that stood still for a while taught a time that no refused prompt can correct.
        self._least_s_per_position *= _DOUBT
        return needed_s
