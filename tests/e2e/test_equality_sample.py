"""A sample of the proof of equality, and what it says where there is something to say.

The sample is every pair of values in two arithmetics; the whole proof is `benchmarks/equality`.
"""

from __future__ import annotations

import io
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.equality.__main__ import main
from benchmarks.equality.plan import AXES
from benchmarks.equality.totals import read

SAMPLE = ("--arithmetic", "auto", "bf16-torch", "--tokens", "10")


@dataclass(frozen=True)
class Told:
    """What a run ended with, and its document on its plan."""

    status: int
    plan: dict[str, Any]
    text: str


def run(state: Path, *flags: str) -> Told:
    """The command, on the toy alone."""
    arguments = ["--models", "toy", "--cells", "pairs", "--state", str(state), *flags]
    with redirect_stdout(io.StringIO()) as output:
        status = main(arguments)
    text = output.getvalue()
    (plan,) = json.loads(text.splitlines()[-1])["plans"]
    return Told(status, plan, text)


@dataclass(frozen=True)
class Sample:
    """The whole sample, run once, and its state file as it was then."""

    told: Told
    lines: tuple[str, ...]

    def state(self, folder: Path, change: Callable[[dict[str, Any]], bool]) -> Path:
        """A copy of the state; `change` may change each line, and says whether it stays."""
        path = folder / "state.jsonl"
        documents = [json.loads(line) for line in self.lines]
        path.write_text("".join(f"{json.dumps(one)}\n" for one in documents if change(one)))
        return path


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    path = tmp_path_factory.mktemp("equality") / "state.jsonl"
    told = run(path, *SAMPLE)
    return Sample(told, tuple(line for line in path.read_text().splitlines() if line))


def group_of(line: dict[str, Any]) -> str:
    return str(line.get("result", {}).get("group", ""))


def test_no_drafter_company_or_way_of_sampling_changes_a_bit(sample: Sample) -> None:
    plan = sample.told.plan
    assert (plan["differences"], plan["problems"]) == (0, []), sample.told.text
    assert (plan["cells_not_run"], plan["unseen"]) == (0, [])
    assert sample.told.status == 0
    assert plan["streams"] > plan["cells"] >= len(AXES["prompt"]) * len(AXES["drafter"])
    # The token itself and two alternatives, and three more for each prompt token of some.
    assert plan["scores"] > 3 * plan["tokens"]


def test_a_run_that_is_complete_runs_nothing_again(sample: Sample, tmp_path: Path) -> None:
    path = sample.state(tmp_path, lambda line: True)
    before = path.read_bytes()
    again = run(path, *SAMPLE)
    assert (again.status, again.plan) == (0, sample.told.plan)
    assert path.read_bytes() == before


def test_a_run_that_was_killed_goes_on_where_it_was(sample: Sample, tmp_path: Path) -> None:
    lost = {"toy/bf16-torch/alone/0", "toy/bf16-torch/neighbours/1"}
    path = sample.state(tmp_path, lambda line: group_of(line) not in lost)
    path.write_text(path.read_text() + '{"key": "half a li')
    kept = path.read_text()
    again = run(path, *SAMPLE)
    assert again.status == 0
    for count in ("cells", "cells_not_run", "by_value"):
        assert again.plan[count] == sample.told.plan[count]
    assert path.read_text().startswith(kept)
    added = [json.loads(line) for line in path.read_text()[len(kept) :].splitlines() if line]
    assert {group_of(line) for line in added} == lost


def test_what_did_not_run_is_told_and_is_no_success(sample: Sample, tmp_path: Path) -> None:
    lost = "toy/bf16-torch/alone/0"
    path = sample.state(tmp_path, lambda line: group_of(line) != lost)
    told = run(path, *SAMPLE, "--minutes", "0")
    assert (told.status, told.plan["cells_not_run"], told.plan["differences"]) == (3, 1, 0)
    (cell,) = told.plan["not_run"]
    assert f"not run: {cell}" in told.text
    assert cell.endswith("/bf16-torch/toy")


def test_one_wrong_bit_of_a_plain_answer_is_found_and_can_be_run_again(
    sample: Sample, tmp_path: Path
) -> None:
    """The comparison is broken by what it compares with; the command that is told is not."""
    groups = [json.loads(line)["result"] for line in sample.lines if "result" in json.loads(line)]
    lost = next(one for one in groups if one["group"] == "toy/auto/neighbours/0")
    prompt, _, _, sampling, arithmetic, _ = lost["cells"][0].split("/")

    def change(line: dict[str, Any]) -> bool:
        if line.get("plain") == ["toy", arithmetic, prompt, sampling]:
            line["answers"][-1]["scores"][0][1] ^= 1
        return group_of(line) != lost["group"]

    told = run(sample.state(tmp_path, change), *SAMPLE)
    assert told.status == 1
    assert told.plan["differences"] >= 1
    found = told.plan["first_differences"][0]
    assert found["cell"] == lost["cells"][0]
    assert found["what"].startswith("log probability 0: ")
    assert found["again"] in told.text
    words = shlex.split(found["again"].removeprefix("python -m benchmarks.equality "))
    again = run(tmp_path / "other.jsonl", *words[2:])
    assert (again.status, again.plan["differences"]) == (0, 0)
    assert again.plan["streams"] >= 4


def test_an_engine_that_keeps_no_law_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same daemon with its rules switched off: bits depend on who runs beside a stream."""
    monkeypatch.setenv("SPECD_INVARIANCE", "relaxed")
    cut = ("--company", "crowd", "--sampling", "greedy", "--prompt", "code", "31", "129")
    few = ("--arithmetic", "fp32-torch", "--drafter", "off", "oracle")
    told = run(tmp_path / "state.jsonl", *few, *cut)
    assert told.status == 1
    assert told.plan["differences"] > 0
    assert "the daemon promises nothing: its invariance is relaxed" in told.text


def test_a_record_adds_what_was_compared_once(sample: Sample, tmp_path: Path) -> None:
    path, totals = sample.state(tmp_path, lambda line: True), tmp_path / "totals.json"
    for _ in range(2):
        run(path, *SAMPLE, "--record", "--totals", str(totals))
    (record,) = read(totals)
    plan = sample.told.plan
    assert (record.streams, record.tokens) == (plan["streams"], plan["tokens"])
    assert (record.models, record.differences) == (("toy",), 0)


def test_a_run_that_is_ended_stops_its_daemon_and_tells_what_ran(tmp_path: Path) -> None:
    path = tmp_path / "state.jsonl"
    command = [sys.executable, "-m", "benchmarks.equality", "--models", "toy", "--state", str(path)]
    few = ["--arithmetic", "auto", "--company", "alone", "--sampling", "greedy"]
    with subprocess.Popen([*command, *few], stdout=subprocess.PIPE, text=True) as process:
        try:
            while not path.exists() or '"result"' not in path.read_text():
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    (plan,) = json.loads(output.splitlines()[-1])["plans"]
    assert process.returncode == 3
    assert plan["problems"] == ["toy/auto: interrupted"]
    assert 0 < plan["cells_not_run"] < plan["cells"]
    assert plan["streams"] == path.read_text().count('"result"')


def test_a_daemon_that_does_not_start_is_told_and_none_of_its_cells_ran(tmp_path: Path) -> None:
    told = run(tmp_path / "state.jsonl", "--models", "no-such-model", "--arithmetic", "auto")
    assert told.status == 3
    assert told.plan["cells_not_run"] == told.plan["cells"]
    (problem,) = told.plan["problems"]
    assert problem.startswith("no-such-model/auto: the daemon did not start: ")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--cell", "no/such/cell"), "the plan has no cell no/such/cell"),
        (("--state", "/dev/null/x"), "/dev/null/x"),
        (("--drafter", "nobody"), "invalid choice: 'nobody'"),
    ],
)
def test_wrong_usage_is_one_sentence(
    flags: Sequence[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(tmp_path / "state.jsonl", *flags)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err
