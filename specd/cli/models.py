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
from specd.model.catalog import CATALOG, DEFAULT_MODEL, CatalogModel, cache_dir, cached_path
from specd.model.pull import PullProgress, Report, pull

# Without a terminal one line is written per tenth of the file.
PLAIN_STEP_PERCENT = 10


def list_models(json: bool) -> int:
    """Print the catalog and what of it is on this machine; return the exit status."""
    if json:
        print(dumps({"cache": str(cache_dir()), "models": [_entry(m) for m in CATALOG.values()]}))
        return 0
    table = Table(box=None)
    for title in ("name", "size", "licence", "here", "what it is"):
        table.add_column(title, no_wrap=title != "what it is")
    for model in CATALOG.values():
        name = f"{model.name} (default)" if model.name == DEFAULT_MODEL else model.name
        state = "yes" if _is_here(model) else "no"
        table.add_row(name, decimal(model.num_bytes), model.licence, state, model.summary)
    console = Console()
    console.print(table)
    console.print(f"Files: {cache_dir()}. Fetch one with: specd models pull NAME", soft_wrap=True)
    return 0


def pull_model(name: str, json: bool) -> int:
    """Fetch a named model, showing how far it is; return the exit status."""
    started = time.monotonic()
    try:
        with _shown(name) as report:
            path = pull(name, report)
    except StartFailed as error:
        print(f"error: {error}", file=sys.stderr)
        if json:
            print(dumps({"error": str(error)}))
        return 1
    model = CATALOG[name]
    if json:
        document = {"name": name, "path": str(path), "bytes": model.num_bytes}
        print(dumps(document | {"sha256": model.sha256}))
    else:
        print(f"{name}: {path} ({time.monotonic() - started:.1f} s, sha256 verified)")
    return 0


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
        "default": model.name == DEFAULT_MODEL,
    }


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
            progress.update(task, description=text, completed=state.num_done, total=state.num_bytes)

        yield report


def _plain_report(name: str) -> Report:
    next_percent = 0

    def report(state: PullProgress) -> None:
        nonlocal next_percent
        if state.stage == "waiting":
            print(f"{name}: waiting for another pull", file=sys.stderr)
            return
        percent = 100 * state.num_done // state.num_bytes
        if percent >= next_percent:
            next_percent = percent - percent % PLAIN_STEP_PERCENT + PLAIN_STEP_PERCENT
            size = f"{decimal(state.num_done)} of {decimal(state.num_bytes)}"
            print(f"{name}: {percent}% ({size})", file=sys.stderr, flush=True)

    return report
