"""Fetches files of a model hub: asks what they are, then appends bytes to a partial file.

Knows the hub through `huggingface_hub`: addresses, tokens, offline mode, what an answer means.
HF_ENDPOINT, HF_TOKEN and the library's other variables are its user's settings. The bytes are read
here, with Range requests, because the library keeps nothing of a download that was interrupted.

Invariant: every failure of the network or of the hub is a `PullFailed` in one sentence, within
seconds; an `OSError` that leaves is the disk's.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from specd.errors import PullFailed
from specd.model.catalog import HubFile, HubFolder
from specd.model.partial import CHUNK_BYTES, Partial

# Connections in a row that bring nothing, before the pull gives up.
MAX_FRUITLESS = 3
PAUSE_S = 0.5
_SHA256 = re.compile("[0-9a-f]{64}")
_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")


@dataclass(frozen=True, slots=True)
class HubFacts:
    """What the hub tells of a file. `url` names one commit. sha256: None where it tells none."""

    file: HubFile
    url: str
    num_bytes: int
    etag: str
    sha256: str | None


class _Cut(Exception):
    """A connection that broke or ended early; another one may bring the rest."""


def look_up(file: HubFile) -> HubFacts:
    """Ask the hub once. Raises: PullFailed."""
    # It takes a quarter of a second to import; most commands do without.
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        found = get_hf_file_metadata(hf_hub_url(file.repository, file.path))
        if found.etag is None or found.size is None or found.commit_hash is None:
            raise PullFailed(f"what answers as the hub does not tell what {file} is")
        url = hf_hub_url(file.repository, file.path, revision=found.commit_hash)
    except PullFailed:
        raise
    except Exception as error:  # which HTTP client raises here depends on the library's version
        raise PullFailed(_sentence(file, error)) from error
    sha256 = found.etag if _SHA256.fullmatch(found.etag) else None
    return HubFacts(file, url, found.size, found.etag, sha256)


def look_up_all(folder: HubFolder) -> dict[str, HubFacts]:
    """Ask the hub once for all files at the top of a repository, as of one commit, by name.

    Raises: PullFailed.
    """
    from huggingface_hub import HfApi, constants, hf_hub_url

    repository = folder.repository
    try:
        found = HfApi().model_info(
            repository, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
        listed = {file.rfilename: file for file in found.siblings or ()}
        urls = {name: hf_hub_url(repository, name, revision=found.sha) for name in listed}
    except Exception as error:  # as in `look_up`
        raise PullFailed(_sentence(folder, error)) from error
    facts = {}
    for name, file in listed.items():
        etag = file.lfs.sha256 if file.lfs else file.blob_id
        if found.sha is None or file.size is None or etag is None:
            raise PullFailed(f"what answers as the hub does not tell what {folder}/{name} is")
        if "/" not in name:
            sha256 = etag if _SHA256.fullmatch(etag) else None
            facts[name] = HubFacts(HubFile(repository, name), urls[name], file.size, etag, sha256)
    return facts


def download(facts: HubFacts, partial: Partial, tell: Callable[[int], None]) -> None:
    """Append what is missing to `partial`; `tell` hears how many bytes are there.

    Raises: PullFailed; OSError of the disk. What has come by then is marked.
    """
    fruitless, most = 0, partial.num_bytes
    while partial.num_bytes < facts.num_bytes:
        try:
            _append(facts, partial, tell)
            problem = f"it ended after {partial.num_bytes} of {facts.num_bytes} bytes"
        except _Cut as cut:
            problem = str(cut)
        fruitless = 0 if partial.num_bytes > most else fruitless + 1
        most = max(most, partial.num_bytes)
        if fruitless >= MAX_FRUITLESS:
            raise PullFailed(f"the download of {facts.file} broke off: {problem}")
        time.sleep(PAUSE_S * fruitless)


def _append(facts: HubFacts, partial: Partial, tell: Callable[[int], None]) -> None:
    try:
        with closing(_chunks(facts, partial.num_bytes)) as chunks:
            for position, chunk in chunks:
                if position != partial.num_bytes:  # the server knows no ranges and starts over
                    partial.rewind(0)
                partial.write(chunk)
                if partial.num_unmarked >= CHUNK_BYTES:
                    partial.mark()
                tell(partial.num_bytes)
    finally:
        # On a full disk the last mark that was stored stands.
        with suppress(OSError):
            partial.mark()


def _chunks(facts: HubFacts, start: int) -> Generator[tuple[int, bytes]]:
    """One connection: chunks with their places in the file. Raises: _Cut; PullFailed."""
    from huggingface_hub import constants, get_session, hf_raise_for_status
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    # A compressed answer would have other places.
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        with get_session().stream(
            "GET", facts.url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
        ) as response:
            hf_raise_for_status(response)
            place = _place(facts, response)
            for chunk in response.iter_bytes():
                yield place, chunk
                place += len(chunk)
    except PullFailed:
        raise
    except HfHubHTTPError as error:
        raise PullFailed(_sentence(facts.file, error)) from error
    except Exception as error:  # as in `look_up`
        raise _Cut(_reason(error)) from error


def _place(facts: HubFacts, response: Any) -> int:
    """Where in the file an answer begins."""
    if response.status_code != 206:
        return 0
    told = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    asked = re.fullmatch(r"bytes=(\d+)-", response.request.headers.get("Range", ""))
    if told is None or asked is None or told[1] != asked[1]:
        raise PullFailed(f"the hub answers with another part of {facts.file} than was asked for")
    return int(told[1])


def _sentence(file: HubFile | HubFolder, error: Exception) -> str:
    """What went wrong; the library's own messages have several lines."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        return f"{file.repository} is gated: ask for access there and set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"the hub has no {file.repository}, or it is private and HF_TOKEN does not open it"
    if isinstance(error, errors.EntryNotFoundError) and isinstance(file, HubFile):
        return f"{file.repository} has no file {file.path}"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "the hub is switched off by HF_HUB_OFFLINE"
    if isinstance(error, errors.HfHubHTTPError):
        return f"the hub answers {error.response.status_code} for {file}"
    return f"the hub {constants.ENDPOINT} cannot be reached: {_reason(error)}"


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
