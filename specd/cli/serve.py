"""`specd serve`: logging, progress on the terminal, and the exit status of a failed start."""

from __future__ import annotations

import logging
import os
import sys
import threading

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from specd.app import serve
from specd.config import ServeSettings
from specd.errors import DeviceLost, SpecdError, StartFailed
from specd.threads import left_behind

_log = logging.getLogger("specd.app")

FAILED = 1
# A supervisor that sees it knows that another try will not help.
START_FAILED = 3
_PATIENCE_S = 0.1
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# Loggers that `--log-level` is about; the libraries below them say nothing under INFO.
_OURS = ("specd", "drafters")


def run(settings: ServeSettings) -> int:
    """Run the daemon; returns the exit status."""
    console = Console(stderr=True)
    _log_to(console, settings.log_level)
    bars = _Bars(console)
    problems: list[str] = []
    lost: list[str] = []
    try:
        anyio.run(serve, settings, bars)
    except* StartFailed as group:
        problems.extend(sentences(group))
    except* DeviceLost as group:
        lost.extend(sentences(group))
    finally:
        bars.close()
    for problem in (*problems, *lost):
        print(f"specd: {problem}", file=sys.stderr)
    return ended(START_FAILED if problems else FAILED if lost else 0)


def _log_to(console: Console, level: str) -> None:
    handler = _AboveBars(console) if console.is_terminal else logging.StreamHandler()
    logging.basicConfig(
        handlers=[handler],
        format=_FORMAT,
        level=max(logging.getLevelNamesMapping()[level], logging.INFO),
    )
    for name in _OURS:
        logging.getLogger(name).setLevel(level)


def sentences(group: BaseExceptionGroup[SpecdError]) -> list[str]:
    """What each failure in a group says."""
    found: list[str] = []
    for error in group.exceptions:
        found.extend(sentences(error) if isinstance(error, BaseExceptionGroup) else [str(error)])
    return found


def ended(status: int) -> int:
    """Return the status, or end here and now where a thread is still at work.

    Python's own end would wait for some threads, and tear others out of native code, which C++
    answers with an abort.
    """
    if busy := left_behind(_PATIENCE_S) + _held_up(_PATIENCE_S):
        _log.warning("ending while %s is still at work", ", ".join(busy))
        logging.shutdown()
        sys.stderr.flush()
        os._exit(status)
    return status


def _held_up(patience_s: float) -> list[str]:
    """Names of the threads that Python's end would wait for."""
    ours = threading.current_thread()
    others = [thread for thread in threading.enumerate() if thread is not ours]
    waited_for = [thread for thread in others if not thread.daemon]
    for thread in waited_for:
        thread.join(patience_s)
    return sorted(thread.name for thread in waited_for if thread.is_alive())


class _AboveBars(logging.Handler):
    """Log lines at a terminal: a bar that is shown moves down and stays whole."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        try:
            self._console.print(Text(self.format(record)), soft_wrap=True)
        except Exception:
            self.handleError(record)


class _Bars:
    """A bar for each stage of the start, there while the stage lasts.

    Called by the thread that loads, which may go on for a while after `close`.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._shown: Progress | None = None
        self._task = TaskID(0)
        self._closed = not console.is_terminal

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show how far a stage is."""
        with self._lock:
            if self._closed:
                return
            if self._shown is None:
                self._shown = self._start(stage, total)
            self._shown.update(self._task, completed=done)
            if done >= total:
                self._stop()

    def close(self) -> None:
        """Show nothing any more."""
        with self._lock:
            self._closed = True
            self._stop()

    def _start(self, stage: str, total: int) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        bars = Progress(*columns, console=self._console, transient=True)
        self._task = bars.add_task(stage, total=total)
        bars.start()
        return bars

    def _stop(self) -> None:
        """Ends rich's own thread, too."""
        if self._shown is not None:
            self._shown.stop()
            self._shown = None
