"""What ran and what came of it: tables for people, one JSON document for scripts.

Knows cells that were wanted and results; runs nothing. Invariant: a cell that did not run is
counted as missing, and a value whose sign never showed is named.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.equality.axes import COMPANIES, DRAFTERS
from benchmarks.equality.plan import Cell, Group, Plan
from benchmarks.equality.state import Difference, Result, Tally
from benchmarks.equality.totals import Totals

_MAX_SHOWN = 10
COMMAND = "python -m benchmarks.equality"


@dataclass(slots=True)
class PlanReport:
    """The groups of a plan, and the results of those that ran. models: as the caller named them."""

    models: Sequence[str]
    plan: Plan
    groups: Sequence[Group]
    results: Mapping[str, Result]
    problems: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[Cell]:
        """Cells of groups that did not run."""
        left = (group for group in self.groups if str(group) not in self.results)
        return [cell for group in left for cell in group.cells]

    @property
    def differences(self) -> list[Difference]:
        return [found for result in self.results.values() for found in result.differences]

    @property
    def drafters(self) -> dict[str, Tally]:
        """What the drafters did, by name."""
        sums: dict[str, Tally] = {}
        for result in self.results.values():
            for name, tally in result.drafters.items():
                whole = sums.setdefault(name, Tally())
                for count in Tally.__slots__:
                    setattr(whole, count, getattr(whole, count) + getattr(tally, count))
        return sums

    @property
    def unseen(self) -> list[str]:
        """Values that ran and never showed their sign: a drafter that drafted nothing, say."""
        drafters = self.drafters
        found = [
            f"{name}: {kind.sign} is 0"
            for name, kind in DRAFTERS.items()
            if kind.sign and name in drafters and getattr(drafters[name], kind.sign) == 0
        ]
        for name, company in COMPANIES.items():
            some = [result for result in self.results.values() if result.company == name]
            if company.sign and some and sum(getattr(one, company.sign) for one in some) == 0:
                found.append(f"{name}: {company.sign} is 0")
        return found

    def count(self, what: str) -> int:
        """The sum of a count over all results."""
        return sum(getattr(result, what) for result in self.results.values())

    def _shown(self) -> list[dict[str, str]]:
        """The first differences, each with the command that runs its cell again in its company."""
        found = [(result, one) for result in self.results.values() for one in result.differences]
        again = f"{COMMAND} --models {shlex.join(self.models)} {self.plan.flags()} --cell"
        # A stream that was there for company is no cell of its own there: its group is named.
        return [
            {
                "cell": one.cell,
                "what": one.what,
                "again": f"{again} {one.cell if one.cell in result.cells else result.group}",
            }
            for result, one in found[:_MAX_SHOWN]
        ]

    def document(self) -> dict[str, Any]:
        """All of it."""
        missing = self.missing
        return {
            "models": list(self.models),
            "plan": self.plan.flags(),
            "cells": sum(len(group.cells) for group in self.groups),
            "cells_not_run": len(missing),
            **{name: self.count(name) for name in ("streams", "left", "tokens", "scores")},
            **{name: self.count(name) for name in ("recomputed", "cached")},
            "seconds": round(self.count("seconds"), 1),
            "by_value": self._by_value(),
            "not_run": [str(cell) for cell in missing[:_MAX_SHOWN]],
            "differences": len(self.differences),
            "first_differences": self._shown(),
            "unseen": self.unseen,
            "problems": self.problems,
        }

    def _by_value(self) -> dict[str, dict[str, list[int]]]:
        """Cells that ran and cells in all, by axis and value."""
        done = (group for group in self.groups if str(group) in self.results)
        ran = self._counted(done)
        wanted = self._counted(self.groups)
        return {
            axis: {value: [ran[axis, value], wanted[axis, value]] for value in values}
            for axis, values in self.plan.axes.items()
        }

    def _counted(self, groups: Iterable[Group]) -> Counter[tuple[str, str]]:
        axes = self.plan.axes
        cells = (cell for group in groups for cell in group.cells)
        return Counter(place for cell in cells for place in zip(axes, cell.values, strict=True))


def show(reports: Sequence[PlanReport], totals: Totals | None, console: Console) -> None:
    """Print tables, what is missing, and how to see each difference again."""
    for report in reports:
        document = report.document()
        console.print(_values_table(document))
        console.print(_drafters_table(report))
        for line in _lines(report, document):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    if totals:
        console.print(
            f"all records: {totals.streams:,} streams, {totals.tokens:,} tokens, "
            f"{totals.differences} differences",
            highlight=False,
        )


def _values_table(document: Mapping[str, Any]) -> Table:
    table = Table(title=f"{', '.join(document['models'])}: cells that ran, of all", box=None)
    for axis in document["by_value"]:
        table.add_column(axis)
    columns = [
        [f"{value} {ran}/{wanted}" for value, (ran, wanted) in values.items()]
        for values in document["by_value"].values()
    ]
    for line in range(max(map(len, columns))):
        table.add_row(*(column[line] if line < len(column) else "" for column in columns))
    return table


def _drafters_table(report: PlanReport) -> Table:
    table = Table(title="what the drafters did, neighbours included", box=None)
    for column in ("drafter", *Tally.__slots__):
        table.add_column(column, justify="left" if column == "drafter" else "right")
    for name, tally in report.drafters.items():
        table.add_row(name, *(str(getattr(tally, count)) for count in Tally.__slots__))
    return table


def _lines(report: PlanReport, document: Mapping[str, Any]) -> list[str]:
    ran = document["cells"] - document["cells_not_run"]
    lines = [
        f"{', '.join(report.models)}: {ran} of {document['cells']} cells in "
        f"{document['seconds']} s, {document['left']} streams left early, "
        f"{document['recomputed']} positions recomputed, {document['cached']} cached",
        f"compared {document['streams']} streams, {document['tokens']} tokens, "
        f"{document['scores']} log probabilities: {document['differences']} differences",
    ]
    lines += [f"  not run: {name}" for name in document["not_run"]]
    if document["cells_not_run"] > _MAX_SHOWN:
        lines.append(f"  not run: {document['cells_not_run'] - _MAX_SHOWN} more")
    lines += [f"  never seen: {name}" for name in document["unseen"]]
    lines += [f"  {problem}" for problem in report.problems]
    for found in document["first_differences"]:
        lines += [f"  {found['cell']}: {found['what']}", f"    {found['again']}"]
    return lines
