"""Seconds that a caller gives, as time limits of gRPC and durations of the protocol.

Knows what gRPC and protobuf can hold; knows no limit of the server.

Invariant: a time that cannot be meant is a ValueError with the name of its option.
"""

from __future__ import annotations

import math

from google.protobuf.duration_pb2 import Duration

# gRPC reckons in nanoseconds of 64 bits: beyond 292 years a deadline is one that has passed.
NO_LIMIT_S = 10 * 365.25 * 86_400
LONGEST_S = 315_576_000_000  # 10,000 years, by the definition of google.protobuf.Duration


def time_limit(name: str, seconds: float | None) -> float | None:
    """Returns a limit in seconds; None, no limit, for more than ten years.

    Raises ValueError for nan and below 0.
    """
    if seconds is None:
        return None
    if not seconds >= 0:
        raise ValueError(f"{name} is 0 or above, not {seconds:g}")
    return seconds if seconds <= NO_LIMIT_S else None


def duration(name: str, seconds: float) -> Duration:
    """Returns a duration, rounded to nanoseconds.

    Raises ValueError for nan, below 0 and more than a Duration can hold.
    """
    if not 0 <= seconds <= LONGEST_S:
        raise ValueError(f"{name} is between 0 and {LONGEST_S} s, not {seconds:g}")
    whole = math.floor(seconds)
    nanos = round((seconds - whole) * 1e9)
    return Duration(seconds=whole + nanos // 10**9, nanos=nanos % 10**9)
