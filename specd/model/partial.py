"""A file under construction that survives a kill: its bytes, and a record of what they should be.

Knows sizes and checksums, nothing of where bytes come from. The record beside the bytes holds
marks: at this length the running sha256 was this, and maybe a named part ended here. Whoever goes
on hashes what lies on the disk and trusts it up to the last mark that fits; the rest is cut off.

Invariant: between calls the bytes up to the last mark are on the disk and hash to what the record
says. `finish` makes a verified file appear under its final name at once.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, Field, ValidationError

from specd.errors import PullFailed

if TYPE_CHECKING:
    from hashlib import _Hash

CHUNK_BYTES = 1 << 20


class WrongContent(PullFailed):
    """The bytes that came are not those of the file: their number or their checksum is wrong."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the whole file has to be.

    identity: bytes that were fetched for another one are not gone on with. sha256: None where
    nobody tells it; then the size alone is checked.
    """

    name: str
    num_bytes: int
    identity: str
    sha256: str | None


class _RecordedMark(BaseModel):
    num_bytes: int = Field(ge=0)
    sha256: str
    part: str | None


class _Record(BaseModel):
    identity: str
    marks: list[_RecordedMark]


@dataclass(frozen=True, slots=True)
class _Mark:
    num_bytes: int
    digest: _Hash
    part: str | None

    def after(self, chunk: memoryview) -> _Mark:
        digest = self.digest.copy()
        digest.update(chunk)
        return _Mark(self.num_bytes + len(chunk), digest, None)


_START = _Mark(0, hashlib.sha256(), None)


class Partial:
    """Use it as a context manager: at its end the record fits the bytes, or both are gone."""

    def __init__(self, path: Path, expected: Expected) -> None:
        """Open `path`, or go on with it as far as its record holds. Raises: OSError."""
        self.path = path
        self._record = record_path(path)
        self.expected = expected
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        # One value, so that a Ctrl-C finds length and checksum in step.
        self._here = _START
        self._marks: list[_Mark] = []
        self._recover()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._fd < 0:
            return
        self.settle()
        self._close()
        if not self.num_bytes:
            self.path.unlink(missing_ok=True)
            self._record.unlink(missing_ok=True)

    @property
    def num_bytes(self) -> int:
        """How long the file is now."""
        return self._here.num_bytes

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that lie whole at the beginning of the file."""
        return tuple(mark.part for mark in self._marks if mark.part is not None)

    @property
    def num_part_bytes(self) -> int:
        """How many bytes `parts` have."""
        return max((mark.num_bytes for mark in self._marks if mark.part is not None), default=0)

    @property
    def num_unmarked(self) -> int:
        """Bytes behind the last mark."""
        return self.num_bytes - (self._marks[-1].num_bytes if self._marks else 0)

    def write(self, chunk: bytes) -> None:
        """Append. Raises: WrongContent beyond the expected size; OSError."""
        if self.num_bytes + len(chunk) > self.expected.num_bytes:
            raise WrongContent(
                f"{self.expected.name} has more than the {self.expected.num_bytes} bytes "
                "it should have"
            )
        view = memoryview(chunk)
        while view:
            num_written = os.write(self._fd, view)
            self._here = self._here.after(view[:num_written])
            view = view[num_written:]

    def mark(self, part: str | None = None) -> None:
        """Make what is here now survive; `part` names what ends here. Raises: OSError."""
        before = self._marks
        lasting = [mark for mark in before if mark.part is not None]
        # First here, then on the disk: after a Ctrl-C between the two the file is longer than its
        # record, which costs what is longer; shorter, it would cost everything.
        self._marks = [*lasting, replace(self._here, part=part)]
        try:
            self._store(self._marks)
        except OSError:
            self._marks = before
            raise

    def settle(self) -> None:
        """Cut off what came after the last mark."""
        self._cut(self._marks)

    def rewind(self, num_parts: int) -> None:
        """Cut off everything after the first `num_parts` parts; there are at least so many."""
        assert num_parts <= len(self.parts)
        if self._marks[num_parts:] or self.num_unmarked:
            self._cut(self._marks[:num_parts])

    def finish(self, target: Path) -> None:
        """Rename to `target` what was verified. Raises: OSError."""
        os.fsync(self._fd)
        self._close()
        self.path.replace(target)
        self._record.unlink(missing_ok=True)
        _sync_folder(target.parent)

    def verify(self) -> None:
        """Raises: WrongContent where this is not the whole file."""
        name, wanted = self.expected.name, self.expected.sha256
        if self.num_bytes != self.expected.num_bytes:
            raise WrongContent(f"{name} has {self.num_bytes} bytes, not {self.expected.num_bytes}")
        found = self._here.digest.hexdigest()
        if wanted is not None and found != wanted:
            raise WrongContent(f"{name} has sha256 {found}, not {wanted}")

    def _recover(self) -> None:
        size = os.fstat(self._fd).st_size
        for recorded in self._recorded():
            if not self.num_bytes <= recorded.num_bytes <= size:
                break
            self._hash_to(recorded.num_bytes)
            if self._here.digest.hexdigest() != recorded.sha256:
                break
            self._marks.append(replace(self._here, part=recorded.part))
        self._cut(self._marks)

    def _recorded(self) -> list[_RecordedMark]:
        """What the record claims; nothing where there is none for this file."""
        try:
            record = _Record.model_validate_json(self._record.read_bytes())
        except (FileNotFoundError, ValidationError):
            return []
        return record.marks if record.identity == self.expected.identity else []

    def _hash_to(self, num_bytes: int) -> None:
        while self.num_bytes < num_bytes:
            chunk = os.read(self._fd, min(CHUNK_BYTES, num_bytes - self.num_bytes))
            if not chunk:  # somebody shortens it under our hands; the checksum will not fit
                break
            self._here = self._here.after(memoryview(chunk))

    def _cut(self, marks: list[_Mark]) -> None:
        self._marks = list(marks)
        self._here = self._marks[-1] if self._marks else _START
        os.ftruncate(self._fd, self.num_bytes)
        os.lseek(self._fd, self.num_bytes, os.SEEK_SET)

    def _store(self, marks: list[_Mark]) -> None:
        recorded = [
            _RecordedMark(num_bytes=m.num_bytes, sha256=m.digest.hexdigest(), part=m.part)
            for m in marks
        ]
        record = _Record(identity=self.expected.identity, marks=recorded)
        fresh = self._record.with_name(self._record.name + ".new")
        try:
            fresh.write_text(record.model_dump_json())
            fresh.replace(self._record)
        except OSError:
            with suppress(OSError):
                fresh.unlink()
            raise

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1


def partial_path(target: Path) -> Path:
    """Where the bytes of an unfinished `target` lie."""
    return target.with_name(target.name + ".part")


def record_path(partial: Path) -> Path:
    """Where the record of a partial file lies."""
    return partial.with_name(partial.name + ".json")


def _sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
