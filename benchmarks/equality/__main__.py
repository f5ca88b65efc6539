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
import math
import signal
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
from benchmarks.equality.report import PlanReport, show
from benchmarks.equality.state import Result, State, sources
from benchmarks.equality.trial import DaemonGone, Subject, Trial
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
    clock = _Clock(chosen.minutes)
    reports = []
    added = None
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="specd-equality-")))
        # A cell is run again whatever an earlier run said of it.
        path = folder / "state.jsonl" if chosen.cell else Path(chosen.state)
        try:
            for plan, subjects in _plans(chosen, folder):
                state = State(path, f"{plan.models} {plan.flags()}")
                reports.append(_run(subjects, plan, state, chosen.cell, clock))
                if chosen.record and (fresh := state.unrecorded()):
                    added = totals.add(totals.record_of(fresh, sources()), chosen.totals)
                    state.add_recorded(fresh)
        except (SpecdError, ValueError) as error:
            parser.error(str(error))
    show(reports, added, tables.console())
    print(json.dumps({"plans": [report.document() for report in reports]}))
    return _status(reports, is_part=chosen.cell is not None)


def _run(
    subjects: Sequence[Subject], plan: Plan, state: State, cell: str | None, clock: _Clock
) -> PlanReport:
    """Run the groups that the state lacks. Raises ValueError for a cell that does not exist."""
    groups = plan.groups()
    if cell:
        groups = [group for group in groups if cell in map(str, (group, *group.cells))]
        if not groups:
            raise ValueError(f"the plan has no cell {cell}")
    problems = []
    told = _Telling(len(groups))
    by_name = {subject.name: subject for subject in subjects}
    for (model, arithmetic), missing in _by_daemon(groups, state).items():
        if clock.is_over():
            break
        with tempfile.TemporaryDirectory(prefix="specd-equality-") as folder:
            trial = Trial(by_name[model], arithmetic, plan, missing, state)
            problem = _tried(trial, Path(folder), clock, told)
        problems += [f"{model}/{arithmetic}: {what}" for what in (problem, trial.problem) if what]
    done = (group for group in map(str, groups) if group in state.results)
    results = {group: state.results[group] for group in done}
    asked = [TOY if subject.name == TOY else subject.model for subject in subjects]
    return PlanReport(asked, plan, groups, results, problems)


def _tried(trial: Trial, folder: Path, clock: _Clock, told: _Telling) -> str | None:
    """What kept a trial from its end."""
    try:
        trial.run(folder, clock.is_over, told)
    except (DaemonFailed, DaemonGone) as error:
        return str(error)
    except KeyboardInterrupt:
        clock.stop()
        return "interrupted"
    return None


def _by_daemon(groups: Sequence[Group], state: State) -> dict[tuple[str, str], list[Group]]:
    """The groups that did not run, by model and arithmetic."""
    missing: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        if str(group) not in state.results:
            missing.setdefault((group.model, group.arithmetic), []).append(group)
    return missing


class _Clock:
    """When nothing more begins: when the minutes are over, or somebody wants an end."""

    def __init__(self, minutes: float | None) -> None:
        self._end_s = math.inf if minutes is None else time.monotonic() + 60 * minutes

    def is_over(self) -> bool:
        return time.monotonic() >= self._end_s

    def stop(self) -> None:
        self._end_s = -math.inf


class _Telling:
    """A line on stderr now and then, and one for each group that differs."""

    def __init__(self, num_groups: int) -> None:
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
                f"{result.group}: {self._num_done} of {self._num_groups} groups, "
                f"{self._num_streams} streams; {len(result.differences)} differences in this one",
                style="bold red" if result.differences else "dim",
                highlight=False,
            )


def _plans(chosen: argparse.Namespace, folder: Path) -> list[tuple[Plan, list[Subject]]]:
    """One of the toy and one of all other models, for each number. Raises ValueError."""
    named = [part for name in chosen.models for part in (REAL if name == ALL_REAL else (name,))]
    others = [Subject(_short(name), name) for name in dict.fromkeys(named) if name != TOY]
    toys = [_toy(folder)] if TOY in named else []
    if len({subject.name for subject in others}) < len(others):
        raise ValueError("two models have the same file name")
    only = tuple((axis, tuple(values)) for axis in AXES if (values := getattr(chosen, axis)))
    plans = []
    for number in dict.fromkeys(chosen.number):
        for subjects in (toys, others):
            cells: Cells = chosen.cells or ("all" if subjects is toys else "pairs")
            names = tuple(subject.name for subject in subjects)
            plans.append((Plan(names, cells, number, chosen.tokens, only), subjects))
    return [(plan, subjects) for plan, subjects in plans if subjects]


def _short(name: str) -> str:
    """What is left of a path or a name of the hub."""
    return name.rstrip("/").rpartition("/")[2]


def _toy(folder: Path) -> Subject:
    path = folder / "toy.gguf"
    # Blocks of 4 and of 8 bits, so that all weight formats differ; a vocabulary that is a multiple
    # of nothing.
    build_toy_model(
        path, seed=5, vocab=1021, linear_type="Q4_1", embed_type="Q8_0", context_length=512
    )
    return Subject(TOY, str(path), threads=1)


def _status(reports: Sequence[PlanReport], *, is_part: bool) -> int:
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
        "--cells", choices=("all", "pairs"), help="default: all on the toy, else every pair"
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="begin nothing later than that")
    parser.add_argument(
        "--number",
        type=int,
        nargs="+",
        default=[0],
        metavar="N",
        help="another one: other seeds, rows and neighbours [0]",
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
    # However it is ended, its daemon is stopped and what ran is reported.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
