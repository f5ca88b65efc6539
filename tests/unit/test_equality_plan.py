"""The proof of equality covers what it says: every cell or every pair, each in its company."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.equality.axes import COMPANIES, DRAFTERS, SAMPLINGS
from benchmarks.equality.company import LEAVING, Leave, crowd
from benchmarks.equality.pairs import all_pairs, covering_rows, pairs_of
from benchmarks.equality.plan import AXES, Cells, Group, Plan

TWO = (("arithmetic", ("auto", "bf16-torch")),)


def cells_of(plan: Plan) -> list[tuple[str, ...]]:
    return [cell.values for group in plan.groups() for cell in group.cells]


@given(st.lists(st.integers(1, 7), min_size=2, max_size=5))
def test_rows_have_every_pair_of_values_whatever_the_axes(sizes: list[int]) -> None:
    axes = {
        str(axis): [f"{axis}.{value}" for value in range(size)] for axis, size in enumerate(sizes)
    }
    rows = covering_rows(axes)
    assert {pair for row in rows for pair in pairs_of(row)} == set(all_pairs(axes))
    assert len(rows) <= len(list(product(*axes.values())))


@pytest.mark.parametrize("models", [("toy",), ("a", "b", "c")])
@pytest.mark.parametrize("number", [0, 1, 7])
def test_the_pairs_of_every_plan_are_all_pairs_of_all_axes(
    number: int, models: tuple[str, ...]
) -> None:
    rows = cells_of(Plan(models, "pairs", number, 24))
    axes = {**AXES, "model": models}
    assert {pair for row in rows for pair in pairs_of(row)} == set(all_pairs(axes))
    widest = sorted(map(len, AXES.values()))[-2:]
    assert len(rows) <= 1.15 * widest[0] * widest[1]


def test_all_cells_are_all_combinations_and_each_is_there_once() -> None:
    rows = cells_of(Plan(("toy",), "all", 0, 24))
    assert Counter(rows) == Counter(product(*AXES.values(), ["toy"]))


def test_an_axis_can_be_cut_to_some_values() -> None:
    rows = cells_of(Plan(("toy",), "all", 0, 24, TWO))
    assert {row[-2] for row in rows} == {"auto", "bf16-torch"}
    assert Counter(rows) == Counter(product(*list(AXES.values())[:-1], TWO[0][1], ["toy"]))


@pytest.mark.parametrize("cells", ["all", "pairs"])
def test_every_group_has_the_company_that_its_cells_want(cells: Cells) -> None:
    for group in Plan(("a", "b"), cells, 0, 24).groups():
        assert len(group.members) == COMPANIES[group.company].size
        assert {cell.company for cell in group.cells} == {group.company}
        assert {(cell.model, cell.arithmetic) for cell in group.members} == {
            (group.model, group.arithmetic)
        }


def test_groups_have_names_of_their_own() -> None:
    names = Counter(map(str, Plan(("toy",), "all", 0, 24).groups()))
    assert max(names.values()) == 1


def test_equal_plans_have_equal_groups_and_another_number_gives_others() -> None:
    groups = Plan(("toy",), "pairs", 0, 24).groups()
    assert Plan(("toy",), "pairs", 0, 24).groups() == groups
    assert Plan(("toy",), "pairs", 1, 24).groups() != groups


def test_each_prompt_and_sampling_has_a_seed_of_its_own_in_each_number() -> None:
    plans = [Plan(("toy",), "pairs", number, 24) for number in (0, 1)]
    seeds = {
        plan.seed(prompt, sampling)
        for plan in plans
        for prompt in AXES["prompt"]
        for sampling in SAMPLINGS
    }
    assert len(seeds) == 2 * len(AXES["prompt"]) * len(SAMPLINGS)
    assert all(0 <= seed < 1 << 64 for seed in seeds)


def test_few_pages_come_behind_all_else_of_a_model_and_arithmetic() -> None:
    groups = Plan(("a", "b"), "pairs", 0, 24).groups()
    tight: dict[tuple[str, str], list[bool]] = {}
    for group in groups:
        daemon = (group.model, group.arithmetic)
        tight.setdefault(daemon, []).append(COMPANIES[group.company].is_tight)
    assert list(tight) == list(product("ab", AXES["arithmetic"]))
    assert all(flags == sorted(flags) and len(set(flags)) == 2 for flags in tight.values())


def test_names_of_values_need_no_quotes_and_no_slash() -> None:
    names = {name for values in AXES.values() for name in values}
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for name in names)


def test_whoever_drafts_says_so_and_nobody_else_does() -> None:
    assert DRAFTERS["off"].request() == {"speculation": False}
    assert DRAFTERS["ngram"].request() == {"drafters": ["ngram"]}
    assert DRAFTERS["default"].request() == {}


@pytest.mark.asyncio
async def test_a_crowd_joins_others_in_their_middle_and_some_of_it_leaves() -> None:
    members = list(range(COMPANIES["crowd"].size))
    order: list[str] = []
    left: Counter[Leave] = Counter()

    async def play(
        member: Any, *, speaks: asyncio.Event | None = None, leave: Leave | None = None
    ) -> None:
        order.append(f"begins {member}")
        await asyncio.sleep(0)
        if speaks:
            speaks.set()
        for _ in range(3):
            await asyncio.sleep(0)
        order.append(f"ends {member}")
        if leave:
            left[leave] += 1

    await crowd(play, members)
    assert left == Counter(LEAVING)
    begun = [int(word.split()[1]) for word in order if word.startswith("begins")]
    ended = [int(word.split()[1]) for word in order if word.startswith("ends")]
    assert set(begun) == set(members)
    assert sorted(begun) == sorted(ended)
    assert len(begun) == len(members) + len(LEAVING)
    first_end = order.index("ends 0")
    assert order.index("begins 9") < first_end < order.index("ends 9")


def test_a_group_that_is_too_small_is_filled_up_and_the_fillers_are_no_cells() -> None:
    plan = Plan(("toy",), "pairs", 0, 24, TWO)
    filled = [group for group in plan.groups() if group.fillers]
    assert filled
    assert len(cells_of(plan)) == len(set(cells_of(plan)))
    assert all(isinstance(group, Group) and group.cells for group in filled)


def test_the_page_names_every_value_of_every_axis_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "equality.md").read_text()
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| `--")]
    told = {axis.strip().strip("`-"): re.findall(r"`([^`]+)`", values) for axis, values in rows}
    assert told == {axis: list(values) for axis, values in AXES.items()}
