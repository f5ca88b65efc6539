"""What the loop is told of the model, and what it tells of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the loop must know of the model: its name, vocabulary and arithmetic fingerprint."""

    name: str
    vocab_size: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Counts at this moment; all but `steps` are zero when nothing runs.

    running, waiting: sequences, each of which is a request to the engine.
    """

    steps: int
    running: int
    waiting: int
    pages_used: int
    pages_total: int
    slots_used: int
    drafter_sessions: int
