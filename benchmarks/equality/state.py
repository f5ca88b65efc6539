"""What was run already: a file of one JSON document a line, added to as each group ends.

Knows plain answers and results of groups. A killed run leaves whole lines and at most one broken
one, the last, which counts for nothing. Lines of another version of the sources, or of other seeds,
stay in the file and count for nothing.

Invariant: what `add` returned from is on disk as far as a killed process can tell.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.equality.answers import Answer
from specd.errors import StartFailed

ROOT = Path(__file__).parents[2]
_SOURCES = ("specd", "drafters", "benchmarks/equality", "clients/python/specd_client")
_SUFFIXES = {".py", ".cpp", ".h", ".inl", ".so"}


class StateUnusable(StartFailed):
    """The file of results cannot be read or written."""


@dataclass(slots=True)
class Tally:
    """What the streams of one drafter did."""

    streams: int = 0
    drafted: int = 0
    accepted: int = 0
    late: int = 0
    faults: int = 0


@dataclass(slots=True)
class Difference:
    """Where a stream was not the plain one."""

    cell: str
    what: str


@dataclass(slots=True)
class Result:
    """What a group came to. scores: log probabilities compared. left: streams left on purpose.

    recomputed: positions that were computed again behind a preemption. cached: tokens of prompts
    that were found in a cache.
    """

    group: str
    model: str
    company: str
    cells: list[str]
    streams: int = 0
    left: int = 0
    tokens: int = 0
    scores: int = 0
    recomputed: int = 0
    cached: int = 0
    seconds: float = 0.0
    drafters: dict[str, Tally] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)

    @staticmethod
    def from_json(told: dict[str, Any]) -> Result:
        """Raises TypeError for what is no result."""
        drafters = {name: Tally(**tally) for name, tally in told.pop("drafters").items()}
        differences = [Difference(**one) for one in told.pop("differences")]
        return Result(**told, drafters=drafters, differences=differences)


class State:
    """The file of one or more runs, as far as it is about the same thing.

    plain: the answers of a plain request, by (model, arithmetic, prompt, sampling), with the
    fingerprint of the daemon that gave them.
    """

    def __init__(self, path: Path, about: str) -> None:
        """about: what a line must be about to count. Raises StateUnusable."""
        self._path = path
        self._key = hashlib.sha256(f"{about}/{sources()}".encode()).hexdigest()[:16]
        self.plain: dict[tuple[str, ...], tuple[str, list[Answer]]] = {}
        self.results: dict[str, Result] = {}
        self._recorded: set[str] = set()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text() if path.exists() else ""
        except OSError as error:
            raise StateUnusable(f"{path}: {error.strerror}") from error
        try:
            for line in _documents(text):
                if line.pop("key", None) == self._key:
                    self._take(line)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateUnusable(f"{path} holds a line of another form: {error!r}") from error

    def add_plain(self, place: Sequence[str], fingerprint: str, answers: list[Answer]) -> None:
        """Keep the answers of a plain request."""
        told = [answer.as_json() for answer in answers]
        self._add({"plain": list(place), "fingerprint": fingerprint, "answers": told})

    def add_result(self, result: Result) -> None:
        """Keep what a group came to."""
        self._add({"result": asdict(result)})

    def unrecorded(self) -> list[Result]:
        """Results that no record counts yet."""
        return [self.results[group] for group in sorted(self.results.keys() - self._recorded)]

    def add_recorded(self, results: Sequence[Result]) -> None:
        """Remember that a record counts these."""
        self._add({"recorded": [result.group for result in results]})

    def _add(self, line: dict[str, Any]) -> None:
        text = json.dumps({"key": self._key} | line)
        try:
            with self._path.open("a") as file:
                # A killed run may have left half a line.
                file.write(f"\n{text}\n")
        except OSError as error:
            raise StateUnusable(f"{self._path}: {error.strerror}") from error
        self._take(json.loads(text))

    def _take(self, line: dict[str, Any]) -> None:
        if place := line.get("plain"):
            answers = [Answer.from_json(told) for told in line["answers"]]
            self.plain[tuple(place)] = (line["fingerprint"], answers)
        elif told := line.get("result"):
            result = Result.from_json(told)
            self.results[result.group] = result
        self._recorded.update(line.get("recorded", ()))


def sources() -> str:
    """A digest of all that computes or compares."""
    digest = hashlib.sha256()
    paths = (path for folder in _SOURCES for path in (ROOT / folder).rglob("*"))
    for path in sorted(path for path in paths if path.suffix in _SUFFIXES):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _documents(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            document = json.loads(line)
        except ValueError:  # cut off by the end of its process
            continue
        if isinstance(document, dict):
            yield document
