"""Which cells there are, and which of them run together.

A cell is one value of each axis, the model included. Cells of one model, one arithmetic and one
company are dealt into groups; a group too small for its company is filled up with other cells of
the same model and arithmetic, whose streams are compared like all others.
Invariant: equal choices give equal groups, so a cell can be run again in the company it had.
"""

from __future__ import annotations

import hashlib
import random
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from benchmarks.equality.axes import ARITHMETICS, COMPANIES, DRAFTERS, PROMPTS, SAMPLINGS
from benchmarks.equality.pairs import covering_rows

Axes = Mapping[str, Sequence[str]]
Cells = Literal["all", "pairs"]
AXES: Axes = {
    "prompt": tuple(PROMPTS),
    "drafter": tuple(DRAFTERS),
    "company": tuple(COMPANIES),
    "sampling": tuple(SAMPLINGS),
    "arithmetic": tuple(ARITHMETICS),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One value of each axis, by name."""

    prompt: str
    drafter: str
    company: str
    sampling: str
    arithmetic: str
    model: str

    def __str__(self) -> str:
        return "/".join(self.values)

    @property
    def values(self) -> tuple[str, ...]:
        """In the order of the axes."""
        drafted = (self.prompt, self.drafter, self.company, self.sampling)
        return (*drafted, self.arithmetic, self.model)


@dataclass(frozen=True, slots=True)
class Group:
    """Cells that run together. fillers: further ones, there for company."""

    number: int
    cells: tuple[Cell, ...]
    fillers: tuple[Cell, ...] = ()

    @property
    def model(self) -> str:
        return self.cells[0].model

    @property
    def arithmetic(self) -> str:
        return self.cells[0].arithmetic

    @property
    def company(self) -> str:
        return self.cells[0].company

    @property
    def members(self) -> tuple[Cell, ...]:
        return (*self.cells, *self.fillers)

    def __str__(self) -> str:
        return f"{self.model}/{self.arithmetic}/{self.company}/{self.number}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be covered. number: another one gives other seeds, rows and neighbours.

    models: names without a slash. only: the values of axes that are left, where not all are.
    """

    models: tuple[str, ...]
    cells: Cells
    number: int
    num_tokens: int
    only: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def axes(self) -> Axes:
        return dict(AXES) | dict(self.only) | {"model": self.models}

    def flags(self) -> str:
        """What makes this plan on the command line, but for the models."""
        words = ["--cells", self.cells, "--number", str(self.number)]
        words += ["--tokens", str(self.num_tokens)]
        for axis, values in self.only:
            words += [f"--{axis}", *values]
        return shlex.join(words)

    def seed(self, prompt: str, sampling: str) -> int:
        """The seed of every request with these."""
        name = f"{self.number}/{prompt}/{sampling}".encode()
        return int.from_bytes(hashlib.sha256(name).digest()[:8], "big")

    def groups(self) -> list[Group]:
        """All groups: daemon by daemon, those with enough memory first."""
        by_place: dict[tuple[str, str, str], list[Cell]] = {}
        by_daemon: dict[tuple[str, str], list[Cell]] = {}
        for cell in self._cells():
            daemon = (cell.model, cell.arithmetic)
            by_place.setdefault((*daemon, cell.company), []).append(cell)
            by_daemon.setdefault(daemon, []).append(cell)
        return [
            group
            for place in sorted(by_place, key=self._order)
            for group in _dealt(by_place[place], by_daemon[place[:2]], COMPANIES[place[2]].size)
        ]

    def _cells(self) -> list[Cell]:
        """Every cell once, in a random order that is always the same."""
        axes = self.axes
        rows = covering_rows(self._shuffled()) if self.cells == "pairs" else product(*axes.values())
        cells = [Cell(*row) for row in rows]
        random.Random(self.number).shuffle(cells)
        return cells

    def _shuffled(self) -> Axes:
        """Another order of values gives other rows."""
        chance = random.Random(self.number)
        return {axis: chance.sample(values, len(values)) for axis, values in self.axes.items()}

    def _order(self, place: tuple[str, str, str]) -> tuple[int, int, bool, int]:
        model, arithmetic, company = place
        axes = self.axes
        return (
            self.models.index(model),
            axes["arithmetic"].index(arithmetic),
            COMPANIES[company].is_tight,
            axes["company"].index(company),
        )


def _dealt(cells: Sequence[Cell], others: Sequence[Cell], size: int) -> list[Group]:
    groups = []
    for number, start in enumerate(range(0, len(cells), size)):
        own = tuple(cells[start : start + size])
        # Beginning elsewhere for each group; with few cells one may come several times.
        places = (start + size + step for step in range(size - len(own)))
        fillers = tuple(others[place % len(others)] for place in places)
        groups.append(Group(number, own, fillers))
    return groups
