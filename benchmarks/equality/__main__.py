"""The proof of equality, by one command: every cell on a toy model, every pair on real ones.

    python -m benchmarks.equality [--models NAME ...] [--minutes M] [--record]

Streams of every drafter, company, way of sampling and arithmetic are compared with plain ones:
tokens, text, finish reason, and log probabilities to the bit. Of the models `toy` is a small one
with random weights, made on the spot, and `real` stands for three of the catalog; others are what
`specd serve --model` takes. A run that was killed, or that ran out of `--minutes`, goes on where it
was when it is started again. The last line is one JSON document. Exit status: 0 everything ran and
nothing differs; 1 something differs; 2 wrong usage; 3 nothing differs, but something did not run or
never did what its name says.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from benchmarks import report as tables
from benchmarks.equality import totals
from benchmarks.equality.plan import AXES, Cells, Group, Plan
from benchmarks.equality.report import ModelReport, show
from benchmarks.equality.state import Result, State, sources
from benchmarks.equality.trial import DaemonGone, IsOver, Subject, Trial
from benchmarks.toy_gguf import build_toy_model
from specd.cli.child import DaemonFailed
from specd.errors import SpecdError
from specd.model.catalog import cache_dir

TOY, ALL_REAL = "toy", "real"
REAL = ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
_TELL_S = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing and report all; returns the exit status."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    started_s = time.monotonic()

    def is_over() -> bool:
        minutes = chosen.minutes
        return minutes is not None and time.monotonic() - started_s >= 60 * minutes

    reports = []
    added = None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="specd-equality-")))
        # A cell is run again whatever an earlier run said of it.
        path = folder / "state.jsonl" if chosen.cell else Path(chosen.state)
        try:
            for name in _models(chosen.models):
                plan = _plan(chosen, name)
                state = State(path, plan.flags())
                reports.append(_run(_subject(name, folder), plan, state, chosen.cell, is_over))
                if chosen.record and (fresh := state.unrecorded()):
                    added = totals.add(totals.record_of(fresh, sources()), chosen.totals)
                    state.add_recorded(fresh)
        except (SpecdError, ValueError) as error:
            parser.error(str(error))
    show(reports, added, tables.console())
    print(json.dumps({"models": [report.document() for report in reports]}))
    return _status(reports, is_part=chosen.cell is not None)


def _run(
    subject: Subject, plan: Plan, state: State, cell: str | None, is_over: IsOver
) -> ModelReport:
    """Run the groups that the state lacks. Raises ValueError for a cell that does not exist."""
    groups = plan.groups()
    if cell:
        groups = [group for group in groups if cell in map(str, (group, *group.cells))]
        if not groups:
            raise ValueError(f"the plan has no cell {cell}")
    found = ModelReport(subject.name, plan, groups, {})
    told = _Telling(subject.name, len(groups))
    by_arithmetic: dict[str, list[Group]] = {}
    for group in groups:
        if (subject.name, str(group)) not in state.results:
            by_arithmetic.setdefault(group.arithmetic, []).append(group)
    for arithmetic, missing in by_arithmetic.items():
        if is_over():
            break
        with tempfile.TemporaryDirectory(prefix="specd-equality-") as folder:
            trial = Trial(subject, arithmetic, plan, missing, state)
            try:
                trial.run(Path(folder), is_over, told)
            except (DaemonFailed, DaemonGone) as error:
                found.problems.append(f"{arithmetic}: {error}")
            if trial.problem:
                found.problems.append(f"{arithmetic}: {trial.problem}")
    found.results = {
        str(group): state.results[subject.name, str(group)]
        for group in groups
        if (subject.name, str(group)) in state.results
    }
    return found


class _Telling:
    """A line on stderr now and then, and one for each group that differs."""

    def __init__(self, model: str, num_groups: int) -> None:
        self._model = model
        self._num_groups = num_groups
        self._num_done = self._num_streams = 0
        self._told_s = time.monotonic()
        self._console = Console(stderr=True)

    def __call__(self, result: Result) -> None:
        self._num_done += 1
        self._num_streams += result.streams
        if result.differences or time.monotonic() - self._told_s > _TELL_S:
            self._told_s = time.monotonic()
            self._console.print(
                f"{self._model} {result.group}: {self._num_done} of {self._num_groups} groups, "
                f"{self._num_streams} streams; {len(result.differences)} differences in this one",
                style="bold red" if result.differences else "dim",
                highlight=False,
            )


def _subject(name: str, folder: Path) -> Subject:
    if name != TOY:
        return Subject(name, name)
    path = folder / "toy.gguf"
    # Blocks of 4 and of 8 bits, so that all weight formats differ; a vocabulary that is a multiple
    # of nothing.
    build_toy_model(
        path, seed=5, vocab=1021, linear_type="Q4_1", embed_type="Q8_0", context_length=512
    )
    return Subject(name, str(path), threads=1)


def _models(chosen: Sequence[str]) -> list[str]:
    """Each once."""
    named = [part for name in chosen for part in (REAL if name == ALL_REAL else (name,))]
    return list(dict.fromkeys(named))


def _plan(chosen: argparse.Namespace, model: str) -> Plan:
    only = tuple((axis, tuple(values)) for axis in AXES if (values := getattr(chosen, axis)))
    cells: Cells = chosen.cells or ("all" if model == TOY else "pairs")
    return Plan(cells, chosen.number, chosen.tokens, only)


def _status(reports: Sequence[ModelReport], *, is_part: bool) -> int:
    if any(report.differences for report in reports):
        return 1
    unseen = any(report.unseen for report in reports) and not is_part
    missing = any(report.missing or report.problems for report in reports)
    return 3 if unseen or missing else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks.equality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", default=[TOY, ALL_REAL], metavar="NAME")
    parser.add_argument(
        "--cells", choices=("all", "pairs"), help="default: all on the toy, else pairs"
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="begin nothing later than that")
    parser.add_argument(
        "--number", type=int, default=0, metavar="N", help="another one: other seeds and groups"
    )
    parser.add_argument("--tokens", type=int, default=24, metavar="N", help="of an answer [24]")
    parser.add_argument("--cell", metavar="CELL", help="run one again, or a group")
    parser.add_argument(
        "--state", default=cache_dir() / "equality.jsonl", metavar="FILE", help="[%(default)s]"
    )
    parser.add_argument("--record", action="store_true", help="add to the running totals")
    parser.add_argument(
        "--totals", type=Path, default=totals.PATH, metavar="FILE", help="[%(default)s]"
    )
    for axis, values in AXES.items():
        parser.add_argument(f"--{axis}", nargs="+", choices=values, metavar=axis.upper())
    return parser


if __name__ == "__main__":
    sys.exit(main())
