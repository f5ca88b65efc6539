"""The running totals of all recorded runs, in a file of the repository.

Knows the file; a record is added to and never changed. Invariant: the totals are the sums of the
records, so nothing can disagree.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.equality.state import ROOT, Result
from specd import __version__

PATH = ROOT / "benchmarks" / "equality-totals.json"


@dataclass(frozen=True, slots=True)
class Record:
    """What one run added. scores: log probabilities compared. sources: a digest of the code."""

    date: str
    specd: str
    torch: str
    machine: str
    sources: str
    models: tuple[str, ...]
    cells: int
    streams: int
    tokens: int
    scores: int
    differences: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums of all records."""

    streams: int = 0
    tokens: int = 0
    scores: int = 0
    differences: int = 0


def record_of(results: Sequence[Result], sources: str) -> Record:
    """What these results add."""
    return Record(
        date=datetime.now(UTC).date().isoformat(),
        specd=__version__,
        torch=version("torch"),
        machine=platform.machine(),
        sources=sources,
        models=tuple(dict.fromkeys(result.model for result in results)),
        cells=sum(len(result.cells) for result in results),
        streams=sum(result.streams for result in results),
        tokens=sum(result.tokens for result in results),
        scores=sum(result.scores for result in results),
        differences=sum(len(result.differences) for result in results),
    )


def add(record: Record, path: Path = PATH) -> Totals:
    """Add a record to the file; returns the new totals."""
    records = [*read(path), record]
    lines = ",\n".join(f"  {json.dumps(asdict(one))}" for one in records)
    path.write_text(f"[\n{lines}\n]\n")
    return totals_of(records)


def read(path: Path = PATH) -> list[Record]:
    """All records, in the order they were added."""
    if not path.exists():
        return []
    told = json.loads(path.read_text())
    return [Record(**(one | {"models": tuple(one["models"])})) for one in told]


def totals_of(records: Sequence[Record]) -> Totals:
    """The sums."""
    return Totals(*(sum(getattr(record, name) for record in records) for name in Totals.__slots__))
