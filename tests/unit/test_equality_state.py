"""What ran is kept, counted once and shown; what did not run is missed."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from benchmarks.equality import state as state_module
from benchmarks.equality import totals
from benchmarks.equality.answers import Answer
from benchmarks.equality.plan import Group, Plan
from benchmarks.equality.report import PlanReport
from benchmarks.equality.state import Difference, Result, State, StateUnusable, Tally

ROOT = Path(__file__).parents[2]
PLAN = Plan(("toy",), "pairs", 0, 24, (("arithmetic", ("auto",)), ("sampling", ("greedy",))))
PLACE = ("toy", "auto", "one", "greedy")
ANSWER = Answer(5, 3, (), (7, 8), "ab", ((7, 3204448256, 1, ((7, 3204448256),)),), "MAX_TOKENS", "")


def result_of(group: Group, **changes: object) -> Result:
    """What a group without any difference comes to."""
    cells = [str(cell) for cell in group.cells]
    tallies = {cell.drafter: Tally(1, 9, 3, 1, 1) for cell in group.members}
    found = Result(str(group), "toy", group.company, cells, 20, 1, 400, 1200, drafters=tallies)
    return dataclasses.replace(found, recomputed=7, **changes)  # type: ignore[arg-type]


GROUP = PLAN.groups()[0]


def test_a_state_that_is_opened_again_holds_what_was_added(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state.jsonl"
    first = State(path, "x")
    result = result_of(GROUP, differences=[Difference("cell", "token 1: 2, not 3")])
    first.add_plain(PLACE, "print", [ANSWER])
    first.add_result(result)
    again = State(path, "x")
    assert again.plain == first.plain == {PLACE: ("print", [ANSWER])}
    assert again.results == first.results == {str(GROUP): result}


def test_half_a_line_at_the_end_counts_for_nothing_and_spoils_no_later_one(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    State(path, "x").add_plain(PLACE, "print", [ANSWER])
    whole = path.read_text()
    path.write_text(whole + whole.strip()[:50])
    killed = State(path, "x")
    assert killed.plain.keys() == {PLACE}
    killed.add_result(result_of(GROUP))
    assert State(path, "x").results.keys() == {str(GROUP)}


def test_what_is_about_something_else_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.jsonl"
    State(path, "x").add_result(result_of(GROUP))
    assert State(path, "y").results == {}
    monkeypatch.setattr(state_module, "sources", lambda: "other sources")
    assert State(path, "x").results == {}


def test_the_digest_of_the_sources_is_of_the_core_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.py", "core.inl"):
        (tmp_path / "specd").mkdir(exist_ok=True)
        (tmp_path / "specd" / name).write_text("1")
    monkeypatch.setattr(state_module, "ROOT", tmp_path)
    before = state_module.sources()
    assert state_module.sources() == before
    (tmp_path / "specd" / "core.inl").write_text("2")
    assert state_module.sources() != before


@pytest.mark.parametrize("line", [{"result": {"model": "toy"}}, {"plain": 3}, {"recorded": 1}])
def test_a_line_of_another_form_is_refused(tmp_path: Path, line: dict[str, object]) -> None:
    path = tmp_path / "state.jsonl"
    State(path, "x").add_result(result_of(GROUP))
    key = json.loads(path.read_text())["key"]
    path.write_text(json.dumps({"key": key} | line))
    with pytest.raises(StateUnusable, match="another form"):
        State(path, "x")


def test_a_state_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateUnusable):
        State(tmp_path, "x")


def test_a_result_is_recorded_once(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    first, second = PLAN.groups()[:2]
    state = State(path, "x")
    state.add_result(result_of(first))
    assert [result.group for result in state.unrecorded()] == [str(first)]
    state.add_recorded(state.unrecorded())
    state.add_result(result_of(second))
    assert [result.group for result in State(path, "x").unrecorded()] == [str(second)]


def test_totals_are_the_sums_of_all_records(tmp_path: Path) -> None:
    path = tmp_path / "totals.json"
    differing = result_of(GROUP, differences=[Difference("cell", "what")])
    totals.add(totals.record_of([result_of(GROUP)], "s"), path)
    sums = totals.add(totals.record_of([result_of(GROUP), differing], "s"), path)
    assert sums == totals.Totals(streams=60, tokens=1200, scores=3600, differences=1)
    assert totals.totals_of(totals.read(path)) == sums
    assert [record.cells for record in totals.read(path)] == [1, 2]


def test_the_page_shows_the_running_totals_of_the_repository() -> None:
    page = (ROOT / "docs" / "equality.md").read_text()
    (found,) = re.findall(
        r"\*\*([\d,]+) streams, ([\d,]+) tokens, ([\d,]+) log probabilities, (\d+) differences\*\*",
        page,
    )
    told = totals.Totals(*(int(number.replace(",", "")) for number in found))
    assert told == totals.totals_of(totals.read())


def report(*groups: Group, **changes: object) -> PlanReport:
    """A run of these groups of the plan."""
    results = {str(group): result_of(group, **changes) for group in groups}
    return PlanReport(["toy"], PLAN, PLAN.groups(), results)


def test_whole_runs_miss_nothing() -> None:
    whole = report(*PLAN.groups())
    assert (whole.missing, whole.unseen, whole.differences) == ([], [], [])
    assert whole.document()["cells_not_run"] == 0
    assert whole.count("streams") == 20 * len(PLAN.groups())


def test_a_cell_that_did_not_run_is_reported() -> None:
    *ran, lost = PLAN.groups()
    part = report(*ran)
    assert part.missing == list(lost.cells)
    document = part.document()
    assert document["cells_not_run"] == len(lost.cells)
    assert document["not_run"][0] == str(lost.cells[0])
    ran_of, wanted = document["by_value"]["company"][lost.company]
    assert ran_of == wanted - len(lost.cells)


def test_what_never_did_what_its_name_says_is_named() -> None:
    idle = report(*PLAN.groups())
    for result in idle.results.values():
        result.recomputed = 0
        result.drafters = {name: Tally(1, 9, 0, 0, 0) for name in result.drafters}
    assert {"preempted: recomputed is 0", "oracle: accepted is 0", "late: late is 0"} <= set(
        idle.unseen
    )
    assert not any(name.startswith(("off", "wrong", "nothing")) for name in idle.unseen)


def test_a_difference_comes_with_the_command_that_runs_its_cell_again() -> None:
    cell = str(GROUP.cells[0])
    differing = report(GROUP, differences=[Difference(cell, "token 1: 2, not 3")])
    (found,) = differing.document()["first_differences"]
    assert found["what"] == "token 1: 2, not 3"
    assert found["again"] == (
        "python -m benchmarks.equality --models toy --cells pairs --number 0 --tokens 24 "
        f"--arithmetic auto --sampling greedy --cell {cell}"
    )


def test_a_neighbour_that_differs_is_found_by_its_group() -> None:
    group = next(group for group in PLAN.groups() if group.fillers)
    cell = str(group.fillers[0])
    assert cell not in map(str, group.cells)
    (found,) = report(group, differences=[Difference(cell, "x")]).document()["first_differences"]
    assert found["again"].endswith(f" --cell {group}")
