"""When the tokens of a stream arrive, and the figures that follow from it.

Knows the client and the clock; nothing of what is compared, nor of how figures are shown. All
times are seconds of `time.perf_counter`.

Invariant: every token counts once. Tokens that arrive together are one arrival, and the tokens of
the first arrival belong to the prompt's time, not to decoding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specd_client import Client, Delta, Finished, SequenceFinished
from specd_client.events import DrafterTally


@dataclass(frozen=True, slots=True)
class Timing:
    """One stream. start_s: the call. arrivals: (time, new tokens), at least one, in order."""

    start_s: float
    arrivals: tuple[tuple[float, int], ...]

    @property
    def num_tokens(self) -> int:
        return sum(count for _, count in self.arrivals)

    @property
    def end_s(self) -> float:
        return self.arrivals[-1][0]

    @property
    def first_token_s(self) -> float:
        """From the call to the first token."""
        return self.arrivals[0][0] - self.start_s

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Of the tokens behind the first arrival; None where there is no second."""
        seconds = self.end_s - self.arrivals[0][0]
        later = self.num_tokens - self.arrivals[0][1]
        return later / seconds if later and seconds > 0 else None

    @property
    def gaps_s(self) -> list[float]:
        """Between each two arrivals: how long a reader sees nothing new."""
        times = [at for at, _ in self.arrivals]
        return [later - earlier for earlier, later in zip(times, times[1:], strict=False)]


def together_tokens_per_s(timings: Sequence[Timing]) -> float:
    """All tokens of streams that ran at once, over the time from the first call to the last."""
    seconds = max(one.end_s for one in timings) - min(one.start_s for one in timings)
    return sum(one.num_tokens for one in timings) / seconds


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` (above 0, at most 1) of all values do not exceed."""
    if not values:
        return None
    return sorted(values)[math.ceil(share * len(values)) - 1]


@dataclass(frozen=True, slots=True)
class Run:
    """One measured stream of a daemon. total_s: from the call to the last event."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    timing: Timing
    total_s: float
    tally: DrafterTally

    @property
    def tokens_per_s(self) -> float:
        """Of the whole call, the prompt's time included."""
        return len(self.token_ids) / self.total_s

    @property
    def accepted_length(self) -> float:
        """Tokens per verify step: accepted draft tokens and the target's own."""
        return 1 + self.tally.accepted_draft_tokens / self.tally.verify_steps


async def measure(client: Client, prompt: Mapping[str, Any], **options: Any) -> Run:
    """Stream one answer and time it. Raises what the client raises."""
    texts: list[str] = []
    tokens: list[int] = []
    arrivals: list[tuple[float, int]] = []
    reason, tally = "", None
    start_s = time.perf_counter()
    async for event in client.stream(**prompt, return_token_ids=True, **options):
        match event:
            case Delta():
                if event.token_ids:
                    arrivals.append((time.perf_counter(), len(event.token_ids)))
                texts.append(event.text)
                tokens.extend(event.token_ids)
            case SequenceFinished():
                reason = event.finish_reason.name
            case Finished():
                tally = event.speculation.total
    total_s = time.perf_counter() - start_s
    assert tally is not None
    timing = Timing(start_s, tuple(arrivals))
    return Run("".join(texts), tuple(tokens), reason, timing, total_s, tally)
