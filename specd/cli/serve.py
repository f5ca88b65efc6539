"""`specd serve`: logging, progress on the terminal, and the exit status of a failed start."""

from __future__ import annotations

import logging
import os
import sys

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from specd.app import serve
from specd.config import ServeSettings
from specd.errors import DeviceLost, SpecdError, StartFailed
from specd.threads import left_behind

_log = logging.getLogger("specd.app")

FAILED = 1
# A supervisor that sees it knows that another try will not help.
START_FAILED = 3
_PATIENCE_S = 0.1


def run(settings: ServeSettings) -> int:
    """Run the daemon; returns the exit status."""
    logging.basicConfig(
        level=settings.log_level,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    _log.info("settings: %s", settings.model_dump_json())
    problems: list[str] = []
    lost: list[str] = []
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
            anyio.run(serve, settings, _Stages(bars))
    except* StartFailed as group:
        problems.extend(_sentences(group))
    except* DeviceLost as group:
        lost.extend(_sentences(group))
    for problem in (*problems, *lost):
        print(f"specd: {problem}", file=sys.stderr)
    return _ended(START_FAILED if problems else FAILED if lost else 0)


def _sentences(group: BaseExceptionGroup[SpecdError]) -> list[str]:
    found: list[str] = []
    for error in group.exceptions:
        found.extend(_sentences(error) if isinstance(error, BaseExceptionGroup) else [str(error)])
    return found


def _ended(status: int) -> int:
    """Return the status, or end here and now where a thread is still at work.

    Python's own end would tear it out of native code, and C++ answers that with an abort.
    """
    if busy := left_behind(_PATIENCE_S):
        _log.warning("ending while %s is still at work", ", ".join(busy))
        logging.shutdown()
        sys.stderr.flush()
        os._exit(status)
    return status


class _Stages:
    """One bar per stage of the start, hidden when it is full."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(self._tasks[stage], completed=done, visible=done < total)
