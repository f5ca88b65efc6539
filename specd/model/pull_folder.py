"""Fetches a whole model folder of a hub: settings, tokenizer and tensors, and nothing else.

Knows which files make a model and in which order they come; one file is `pull.py`'s matter. All
are of one commit of the repository. A file that the hub keeps in git itself has the id of its blob
for a checksum, the others their sha256.

Invariant: config.json comes last and goes first, so a folder that has it is complete and verified.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from specd.errors import PullFailed
from specd.model.catalog import HubFolder
from specd.model.hf_names import CONFIG, INDEX, SINGLE, TEXT_FILES
from specd.model.hub_download import HubFacts, look_up_all
from specd.model.partial import partial_path, record_path
from specd.model.pull import Plan, Pulled, Report, Tracker, fetch_file, is_intact, only_one

_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_PARTIAL = partial_path(Path(CONFIG)).suffix


def pull_folder(folder: HubFolder, report: Report | None = None) -> Pulled:
    """Fetch and verify all files of a model that are not here already.

    Raises: PullFailed in one sentence.
    """
    target = folder.cached_path
    tracker = Tracker(report)
    try:
        target.mkdir(parents=True, exist_ok=True)
        with only_one(target.with_name(f"{target.name}.lock"), tracker):
            pulled = _pull(folder, target, tracker)
    except PullFailed as error:
        raise PullFailed(f"{error}{_kept(folder)}") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise PullFailed(f"cannot store {folder} in {target}: {reason}{_kept(folder)}") from error
    tracker.tell("ready", 0)
    return pulled


def num_kept_of_folder(folder: HubFolder) -> int:
    """Bytes of an unfinished pull from which the next one goes on."""
    return 0 if folder.is_here else sum(file.stat().st_size for file in _left(folder.cached_path))


def folder_files(path: Path) -> Iterator[Path]:
    """The files of `path` that a pull puts there."""
    return (file for file in path.glob("*") if _is_part(file.name) and file.is_file())


def _left(path: Path) -> Iterator[Path]:
    yield from folder_files(path)
    yield from (file for file in path.glob(f"*{_PARTIAL}") if _is_part(file.stem))


def _kept(folder: HubFolder) -> str:
    num_bytes = num_kept_of_folder(folder)
    return f"; the next pull goes on from {num_bytes:,} bytes" if num_bytes else ""


def _is_part(name: str) -> bool:
    return name in {CONFIG, SINGLE, INDEX, *TEXT_FILES} or bool(_SHARD.fullmatch(name))


def _pull(folder: HubFolder, target: Path, tracker: Tracker) -> Pulled:
    wanted = _wanted(folder, look_up_all(folder))
    tracker.total = sum(facts.num_bytes for facts in wanted)
    missing = [facts for facts in wanted if not _is_right(target / facts.file.path, facts)]
    if missing and missing[-1].file.path != CONFIG:
        missing.append(wanted[-1])
    if missing:
        (target / CONFIG).unlink(missing_ok=True)
    _remove_others(target, {facts.file.path for facts in wanted})
    _check_space(folder, target, missing)
    tracker.num_before = tracker.total - sum(facts.num_bytes for facts in missing)
    files = [_fetch(facts, target / facts.file.path, tracker) for facts in missing]
    return Pulled(
        path=target,
        num_bytes=tracker.total,
        sha256=None,
        source="hub" if missing else "cache",
        num_resumed=sum(file.num_resumed for file in files),
        origin=f"the hub: {folder}" if missing else "",
        checked=f"size and checksum of {len(wanted)} files",
    )


def _wanted(folder: HubFolder, listed: dict[str, HubFacts]) -> list[HubFacts]:
    """In the order in which they are fetched. Raises: PullFailed where they make no model."""
    shards = sorted(name for name in listed if _SHARD.fullmatch(name))
    is_single = SINGLE in listed
    if CONFIG not in listed or not (is_single or (shards and INDEX in listed)):
        raise PullFailed(_no_model(folder, listed))
    weights = [SINGLE] if is_single else [*shards, INDEX]
    texts = [name for name in TEXT_FILES if name in listed]
    return [listed[name] for name in (*weights, *texts, CONFIG)]


def _no_model(folder: HubFolder, listed: dict[str, HubFacts]) -> str:
    if files := sorted(name for name in listed if name.endswith(".gguf")):
        return f"{folder} has GGUF files; name one of them, for instance {folder}/{files[0]}"
    if any(name.endswith(".bin") for name in listed):
        return (
            f"{folder} has pickled weights alone, and unpickling runs whatever code they hold; "
            "take a repository with safetensors"
        )
    return f"{folder} is no model folder: it lacks {CONFIG} or model.safetensors"


def _remove_others(target: Path, names: set[str]) -> None:
    """What an older commit had would be read as a part of this one."""
    for file in [*_left(target)]:
        if file.name.removesuffix(_PARTIAL) not in names:
            file.unlink()
            record_path(file).unlink(missing_ok=True)


def _check_space(folder: HubFolder, target: Path, missing: list[HubFacts]) -> None:
    needed = sum(facts.num_bytes for facts in missing)
    started = (partial_path(target / facts.file.path) for facts in missing)
    needed -= sum(file.stat().st_size for file in started if file.is_file())
    free = shutil.disk_usage(target).free
    if free < needed:
        raise PullFailed(f"{folder} needs {needed:,} more bytes and {target} has {free:,}")


def _is_right(path: Path, facts: HubFacts) -> bool:
    if not is_intact(path, Plan.of_hub_file(facts).expected):
        return False
    return facts.sha256 is not None or _blob_id(path) == facts.etag


def _fetch(facts: HubFacts, path: Path, tracker: Tracker) -> Pulled:
    path.unlink(missing_ok=True)
    pulled = fetch_file(Plan.of_hub_file(facts), path, tracker)
    if facts.sha256 is None and _blob_id(path) != facts.etag:
        path.unlink()
        raise PullFailed(f"{facts.file} does not have the checksum that the hub tells")
    tracker.num_before += facts.num_bytes
    return pulled


def _blob_id(path: Path) -> str:
    """As git names the content of a file."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
