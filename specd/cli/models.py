"""`specd models list` and `specd models pull`: what the catalog holds and getting it here.

Knows how progress is shown; the work is in `model/catalog.py` and `model/pull.py`. Progress and
errors go to stderr, results to stdout, so that `--json` output is one clean document.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from json import dumps

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from specd.errors import StartFailed
from specd.model.catalog import (
    CATALOG,
    DEFAULT_MODEL,
    HUB_PREFIX,
    CatalogModel,
    HubFile,
    HubFolder,
    cache_dir,
    cached_path,
    parse_hub_name,
    pulled_from_hub,
)
from specd.model.pull import Pulled, PullProgress, Report, Source, num_kept, pull
from specd.model.pull_folder import folder_files, num_kept_of_folder, pull_folder

# Without a terminal one line is written per tenth of the file.
PLAIN_STEP_PERCENT = 10
_INTERRUPTED = 130
_NOT_SERVED = "not served by this version yet"


def list_models(json: bool) -> int:
    """Print the catalog and what is on this machine; return the exit status."""
    pulled = list(pulled_from_hub())
    if json:
        document = {"cache": str(cache_dir()), "models": [_entry(m) for m in CATALOG.values()]}
        print(dumps(document | {"from_hub": [_hub_entry(file) for file in pulled]}))
        return 0
    table = Table(box=None)
    for title in ("name", "size", "licence", "here", "what it is"):
        table.add_column(title, no_wrap=title not in {"name", "what it is"})
    for model in CATALOG.values():
        name = f"{model.name} (default)" if model.name == DEFAULT_MODEL else model.name
        summary = model.summary if model.is_served else f"{model.summary}; {_NOT_SERVED}"
        table.add_row(name, decimal(model.num_bytes), model.licence, _state(model), summary)
    for one in pulled:
        kind = "a file of the hub" if isinstance(one, HubFile) else "a folder of the hub"
        table.add_row(str(one), decimal(_num_bytes(one)), "", "yes", kind)
    console = Console()
    console.print(table)
    for line in ("Fetch one with: specd models pull NAME", f"Files: {cache_dir()}"):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    return 0


def pull_model(name: str, source: Source, json: bool) -> int:
    """Fetch a model, showing how far it is; return the exit status."""
    started = time.monotonic()
    model = CATALOG.get(name)
    if model is not None and not model.is_served:
        print(f"{name}: {_NOT_SERVED} (architecture {model.architecture})", file=sys.stderr)
    try:
        with _shown(name) as report:
            pulled = _pull(name, source, report)
    except StartFailed as error:
        return _failed(str(error), json, 1)
    except KeyboardInterrupt:
        num_bytes = _num_kept(name)
        onwards = f"; the next pull goes on from {num_bytes:,} bytes" if num_bytes else ""
        return _failed(f"interrupted{onwards}", json, _INTERRUPTED)
    if json:
        print(dumps(_document(name, pulled)))
    else:
        seconds = time.monotonic() - started
        whence = f"from {pulled.origin}" if pulled.origin else "was here already"
        print(f"{name}: {pulled.path} ({whence}, {seconds:.1f} s, {pulled.checked} verified)")
    return 0


def _pull(name: str, source: Source, report: Report) -> Pulled:
    folder = _hub_folder(name)
    return pull(name, report, source=source) if folder is None else pull_folder(folder, report)


def _hub_folder(name: str) -> HubFolder | None:
    """Raises: ModelFileError for a name that means nothing on a hub."""
    named = parse_hub_name(name) if name.startswith(HUB_PREFIX) else None
    return named if isinstance(named, HubFolder) else None


def _num_kept(name: str) -> int:
    folder = _hub_folder(name)
    return num_kept(name) if folder is None else num_kept_of_folder(folder)


def _failed(message: str, json: bool, status: int) -> int:
    print(f"specd: {message}", file=sys.stderr)
    if json:
        print(dumps({"error": message}))
    return status


def _document(name: str, pulled: Pulled) -> dict[str, object]:
    return {
        "name": name,
        "path": str(pulled.path),
        "bytes": pulled.num_bytes,
        "sha256": pulled.sha256,
        "source": pulled.source,
        "origin": pulled.origin or None,
        "resumed_bytes": pulled.num_resumed,
    }


def _state(model: CatalogModel) -> str:
    if _is_here(model):
        return "yes"
    num_bytes = num_kept(model.name)
    return f"{100 * num_bytes // model.num_bytes}%" if num_bytes else "no"


def _is_here(model: CatalogModel) -> bool:
    path = cached_path(model.name)
    return path.is_file() and path.stat().st_size == model.num_bytes


def _entry(model: CatalogModel) -> dict[str, object]:
    return {
        "name": model.name,
        "summary": model.summary,
        "licence": model.licence,
        "bytes": model.num_bytes,
        "sha256": model.sha256,
        "path": str(cached_path(model.name)) if _is_here(model) else None,
        "partial_bytes": num_kept(model.name),
        "hub": None if model.hub is None else str(model.hub),
        "architecture": model.architecture,
        "served": model.is_served,
        "default": model.name == DEFAULT_MODEL,
    }


def _hub_entry(one: HubFile | HubFolder) -> dict[str, object]:
    return {"name": str(one), "bytes": _num_bytes(one), "path": str(one.cached_path)}


def _num_bytes(one: HubFile | HubFolder) -> int:
    path = one.cached_path
    if isinstance(one, HubFile):
        return path.stat().st_size
    return sum(file.stat().st_size for file in folder_files(path))


@contextmanager
def _shown(name: str) -> Iterator[Report]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _plain_report(name)
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        task = progress.add_task(name, total=None)

        def report(state: PullProgress) -> None:
            waiting = state.stage == "waiting"
            text = f"{name} (waiting for another pull)" if waiting else name
            total = state.num_bytes or None
            progress.update(task, description=text, completed=state.num_done, total=total)
            if state.note:
                progress.console.print(f"{name}: {state.note}", soft_wrap=True, markup=False)

        yield report


def _plain_report(name: str) -> Report:
    next_percent = 0

    def report(state: PullProgress) -> None:
        nonlocal next_percent
        if state.stage == "waiting":
            print(f"{name}: waiting for another pull", file=sys.stderr, flush=True)
            return
        if state.note:
            print(f"{name}: {state.note}", file=sys.stderr, flush=True)
        percent = 100 * state.num_done // state.num_bytes
        if percent >= next_percent:
            next_percent = percent - percent % PLAIN_STEP_PERCENT + PLAIN_STEP_PERCENT
            size = f"{decimal(state.num_done)} of {decimal(state.num_bytes)}"
            print(f"{name}: {percent}% ({size})", file=sys.stderr, flush=True)

    return report
