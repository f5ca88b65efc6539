"""`specd doctor --invariance`: the guarantee checked on this machine, with a model of the user's.

Knows how findings are shown; they come from `doctor/checkup.py`. Exit status: 0 nothing differs and
what was asked for is promised, 1 otherwise or where nothing could be checked, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specd import __version__
from specd.app import load_drafters
from specd.cli.bench_runs import text
from specd.cli.serve import ended, sentences
from specd.config import ServeSettings
from specd.device.assembly import DeviceSettings
from specd.doctor.answers import NUM_NEW
from specd.doctor.checkup import KV_MEMORY, MAX_ROWS, Course, Report, Told, check_up
from specd.errors import SpecdError
from specd.model.catalog import resolve

COLUMNS = 100
_FAILED, _INTERRUPTED = 1, 130
_SHOWN = 5  # sentences on differences
_LEGEND = (
    "a row: all logits of a position, against one position at a time. an answer: "
    f"{NUM_NEW} tokens and their log probabilities, against the same without drafts and alone. "
    "short of pages: together, and whoever outgrows its pages preempts another."
)


def run(parsed: argparse.Namespace) -> int:
    """Check and print; return the exit status."""
    try:
        return ended(_run(parsed))
    except KeyboardInterrupt:
        print("specd: interrupted", file=sys.stderr)
        return ended(_INTERRUPTED)


def _run(parsed: argparse.Namespace) -> int:
    num_threads = parsed.threads or torch.get_num_threads()
    problems: list[str] = []
    try:
        path = resolve(parsed.model)
        report = _checked(parsed, path)
    except* SpecdError as group:
        problems += sentences(group)
    if problems:
        for problem in problems:
            print(f"specd: {problem}", file=sys.stderr)
        if parsed.json:
            print(json.dumps({"error": "; ".join(problems)}))
        return _FAILED
    document = _document(report, parsed, path, num_threads)
    if parsed.json:
        print(json.dumps(document, allow_nan=False))
    else:
        _show(document)
    return 0 if document["holds"] else _FAILED


def _checked(parsed: argparse.Namespace, path: Path) -> Report:
    """Raises SpecdError, alone or in a group."""
    settings = DeviceSettings(
        model_path=path,
        weights=parsed.weights,
        invariance=parsed.invariance,
        kernels=parsed.kernels,
        kv_memory=KV_MEMORY,
        max_rows=MAX_ROWS,
        max_positions=ServeSettings.model_fields["max_step_tokens"].default,
        num_threads=parsed.threads,
    )
    guests = load_drafters(tuple(dict.fromkeys(parsed.drafter)))
    course = Course(parsed.seed, parsed.minutes)
    with _status() as told:
        return anyio.run(check_up, settings, text(), guests, course, told)


@contextmanager
def _status() -> Iterator[Told]:
    """A line at a terminal that says what is done now."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda doing: None
        return
    with console.status("") as status:
        yield lambda doing: status.update(Text(doing))


def _document(
    report: Report, parsed: argparse.Namespace, path: Path, num_threads: int
) -> dict[str, Any]:
    booted = report.booted
    return {
        "specd": __version__,
        "model": str(path),
        "weights": parsed.weights,
        "kernels": booted.runner.kernels,
        "threads": num_threads,
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "asked": parsed.invariance,
        "promised": booted.invariance,
        "arithmetic_fingerprint": booted.fingerprint,
        "drafters": parsed.drafter,
        "seed": parsed.seed,
        "rounds": report.rounds,
        "seconds": report.seconds,
        "checks": [asdict(finding) for finding in report.findings],
        "differences": report.differences,
        "holds": not report.differences and booted.invariance == parsed.invariance,
    }


def _show(document: dict[str, Any]) -> None:
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=COLUMNS)
    lines = [
        document["model"],
        f"weights {document['weights']}, kernels {document['kernels']}, threads "
        f"{document['threads']}, torch {document['torch']}, {document['cpu']}, specd "
        f"{document['specd']}",
        f"invariance {document['promised']}, arithmetic fingerprint "
        f"{document['arithmetic_fingerprint']}",
    ]
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    console.print()
    console.print(_table(document["checks"]))
    console.print()
    console.print(Text(_LEGEND), soft_wrap=True)
    for line in _verdict(document):
        console.print(Text(line), soft_wrap=True)


def _table(checks: list[dict[str, Any]]) -> Table:
    table = Table(box=None)
    table.add_column("")
    table.add_column("compared", overflow="fold")
    for title in ("how many", "drafts kept", "different"):
        table.add_column(title, justify="right", no_wrap=True)
    last = None
    for check in checks:
        part = "" if check["part"] == last else check["part"]
        amount = f"{check['compared']:,} {check['unit']}"
        kept = f"{check['kept']:,} of {check['drafted']:,}" if check["drafted"] else ""
        table.add_row(part, Text(check["name"]), amount, kept, f"{check['differences']:,}")
        last = check["part"]
    return table


def _verdict(document: dict[str, Any]) -> Iterator[str]:
    rounds = "1 round" if document["rounds"] == 1 else f"{document['rounds']} rounds"
    took = f"in {rounds}, {document['seconds']:.0f} s"
    different = [check for check in document["checks"] if check["differences"]]
    for check in different[:_SHOWN]:
        yield f"{check['part']}, {check['name']}: {check['first']}"
    if document["asked"] != document["promised"]:
        yield f"{document['asked']} was asked for; this machine does not keep it ({took})"
    elif different:
        yield f"{document['differences']:,} differences ({took})"
    elif document["promised"] == "strict":
        yield f"nothing differs ({took})"
    else:
        yield f"nothing differs, although relaxed promises nothing ({took})"
