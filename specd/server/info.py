"""What this daemon is and how it fares, as messages.

Knows where each number comes from. Invariant: a quiet daemon shows zero running, waiting, used
pages, used slots and drafter sessions: whatever is left is a leak.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from specd_client.v1 import model_pb2 as pb
from specd_client.v1 import types_pb2

from specd import __version__
from specd.engine.loop import Engine
from specd.errors import TooManyWatchers
from specd.server.front import Rooms

MAX_WATCHERS = 100
# Half of the shortest interval between two reports.
FRESH_S = 0.05

_INVARIANCE = {
    "strict": pb.INVARIANCE_MODE_STRICT,
    "relaxed": pb.INVARIANCE_MODE_RELAXED,
}


class Watched:
    """The server's information for all who watch it: made for everybody at once, not too often.

    With an own copy for each, a thousand watchers left a stream a tenth of its speed.
    """

    def __init__(self) -> None:
        self._num_watchers = 0
        self._made_s = -math.inf
        self._info = pb.ServerInfo()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count somebody who watches. Raises TooManyWatchers."""
        if self._num_watchers >= MAX_WATCHERS:
            raise TooManyWatchers(MAX_WATCHERS)
        self._num_watchers += 1
        try:
            yield
        finally:
            self._num_watchers -= 1

    def info(self, rooms: Rooms) -> pb.ServerInfo:
        """What holds now, or held a moment ago."""
        now_s = time.monotonic()
        if now_s - self._made_s > FRESH_S:
            self._made_s, self._info = now_s, server_info(rooms)
        return self._info


def server_info(rooms: Rooms) -> pb.ServerInfo:
    """Everything that GetServerInfo tells, at this moment."""
    booted, limits = rooms.booted, rooms.limits
    return pb.ServerInfo(
        version=__version__,
        model=limits.models[0],
        arithmetic_fingerprint=booted.fingerprint,
        invariance=_INVARIANCE[booted.invariance],
        probe_findings=booted.report.findings,
        weights=rooms.weights,
        layout="rectangle" if booted.runner.layout.rectangular else "packed",
        drafters=limits.drafters,
        limits=pb.ServerLimits(
            context_length=limits.context_length,
            max_rows=rooms.max_rows,
            max_waiting=rooms.max_waiting,
            vocab_size=limits.vocab_size,
            max_draft_tokens=limits.max_draft_tokens,
        ),
        counters=_counters(rooms.engine),
        bucket_waste=_waste(rooms.engine),
        drafter_stats=drafter_stats(rooms.engine),
        kernels=booted.runner.kernels,
        weight_bytes=booted.runner.weight_bytes,
        kv_bytes_per_position=booted.runner.kv_bytes_per_position,
        read_bytes_per_second=booted.runner.read_bytes_per_second,
    )


def model_info(rooms: Rooms) -> pb.ModelInfo:
    """Everything that GetModel tells."""
    booted, limits = rooms.booted, rooms.limits
    return pb.ModelInfo(
        name=limits.models[0],
        architecture=booted.config.architecture,
        context_length=limits.context_length,
        vocab_size=limits.vocab_size,
        eos_token_ids=sorted(booted.tokenizer.eos_ids),
        tokenizer_fingerprint=booted.tokenizer.fingerprint,
        has_chat_template=booted.template.usable,
        default_sampling=types_pb2.SamplingParams(temperature=1.0, top_p=1.0, top_k=0, min_p=0.0),
        drafters=limits.drafters,
        default_drafters=limits.default_drafters,
        max_draft_tokens=limits.max_draft_tokens,
    )


def _counters(engine: Engine) -> pb.ServerCounters:
    counts = engine.statistics()
    return pb.ServerCounters(
        steps=counts.steps,
        running=counts.running,
        waiting=counts.waiting,
        pages_used=counts.pages_used,
        pages_total=counts.pages_total,
        slots_used=counts.slots_used,
        drafter_sessions=counts.drafter_sessions,
        tasks=len(asyncio.all_tasks()),
        real_positions=engine.waste.real_positions,
        pad_positions=engine.waste.pad_positions,
    )


def _waste(engine: Engine) -> list[pb.BucketWaste]:
    return [
        pb.BucketWaste(
            label=label,
            steps=waste.steps,
            real_positions=waste.real_positions,
            pad_positions=waste.pad_positions,
            rows=waste.rows,
        )
        for label, waste in engine.waste.by_bucket.items()
    ]


def drafter_stats(engine: Engine) -> list[types_pb2.DrafterStats]:
    """What each drafter has done, in order of the settings."""
    verified, accepted = engine.verified_by_drafter, engine.accepted_by_drafter
    return [
        types_pb2.DrafterStats(
            name=name,
            calls=counts.calls,
            draft_tokens=verified.get(name, 0),
            accepted=accepted.get(name, 0),
            empty=counts.empty,
            late=counts.late,
            faults=counts.faults,
            breaker_open=counts.breaker_open,
        )
        for name, counts in engine.drafting.statistics().items()
    ]
