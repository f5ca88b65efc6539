"""The bars of a start: whole while they are shown, gone with their thread when a stage is over."""

from __future__ import annotations

import io
import logging
import threading

from rich.console import Console

from specd.cli.serve import _AboveBars, _Bars

PATIENCE_S = 10.0


def _terminal() -> tuple[Console, io.StringIO]:
    shown = io.StringIO()
    return Console(file=shown, force_terminal=True, width=80), shown


def _drawing() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "rich" in type(thread).__module__}


def _left_drawing() -> list[str]:
    """Those that do not end; rich asks them to and does not wait."""
    drawing = _drawing()
    for thread in drawing:
        thread.join(PATIENCE_S)
    return [thread.name for thread in drawing if thread.is_alive()]


def test_a_log_line_stands_alone_above_a_bar_and_is_not_broken() -> None:
    console, shown = _terminal()
    bars = _Bars(console)
    bars("loading", 1, 2)
    message = "a [bold]line[/bold] :smile: " + "x" * 100
    record = logging.LogRecord("specd", logging.INFO, "", 0, message, None, None)
    _AboveBars(console).emit(record)
    bars.close()
    assert _left_drawing() == []
    line = next(line for line in shown.getvalue().split("\n") if "x" * 100 in line)
    assert line.rpartition("\x1b[2K")[2] == message


def test_a_full_bar_takes_its_thread_with_it_and_the_next_stage_has_one_of_its_own() -> None:
    console, shown = _terminal()
    bars = _Bars(console)
    for stage in ("loading", "warming up"):
        bars(stage, 1, 2)
        assert len(_drawing()) == 1
        bars(stage, 2, 2)
        assert _left_drawing() == []
        assert stage in shown.getvalue()
        assert shown.getvalue().endswith("\x1b[2K"), "it leaves no line behind"


def test_what_is_told_after_the_end_is_shown_to_nobody() -> None:
    console, shown = _terminal()
    bars = _Bars(console)
    bars("loading", 1, 2)
    bars.close()
    before = shown.getvalue()
    bars("loading", 2, 3)
    assert (_left_drawing(), shown.getvalue()) == ([], before)


def test_without_a_terminal_nothing_is_drawn() -> None:
    shown = io.StringIO()
    bars = _Bars(Console(file=shown))
    bars("loading", 1, 2)
    assert (_drawing(), shown.getvalue()) == (set(), "")
