"""A grammar that no compile would end with is found out in a process that may be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from specd.engine.params import StructureParams
from specd.structure import judge as judge_module
from specd.structure.compiling import limits_of
from specd.structure.grammar import grammar_of
from specd.structure.judge import Judge, TooCostly, TrialBroken
from tests.unit.structure.support import GRAMMARS, PERSON, byte_level, schema, structure

PATIENCE_S = 0.5
# Each of them takes half a minute or for ever.
TRAPS = {
    "multiple": schema({"type": "integer", "multipleOf": 999_983}),
    "two multiples": schema({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}],
                             "type": "integer"}),
    "negation": structure("lark", "start: T\nT: ~/(.*a.{20}b.*)/ & /[ab]{50,100}/"),
    "behind special tokens": structure(
        "lark", "start: <|im_start|> <[300]> T\nT: ~/(.*a.{20}b.*)/ & /[ab]{50,100}/"
    ),
}  # fmt: skip


def order(params: StructureParams) -> str:
    return json.dumps({"grammar": grammar_of(params), "limits": limits_of(params)})


# Compiled in a millisecond, and then half a second for one mask.
SLOW_MASKS = {
    "nested counts": structure("regex", "((((a{50}){50}){50}){50}){50}"),
    "behind a letter": structure("regex", "z((((a{50}){50}){50}){50}){50}"),
}


@pytest.fixture
def judge() -> Iterator[Judge]:
    judge = Judge(byte_level(), PATIENCE_S)
    judge.check(order(structure("regex", "a")))
    yield judge
    judge.close()


def process_of(judge: Judge) -> subprocess.Popen[bytes]:
    assert judge._process is not None
    return judge._process


def test_what_compiles_and_what_is_refused_soon_is_fine(judge: Judge) -> None:
    before = process_of(judge).pid
    for params in (schema(PERSON), structure("lark", "start: ("), structure("regex", "(")):
        judge.check(order(params))
    assert process_of(judge).pid == before


@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_is_too_costly_and_the_next_grammar_is_not(judge: Judge, name: str) -> None:
    process, began = process_of(judge), time.perf_counter()
    with pytest.raises(TooCostly, match="takes more than 0.5 s to compile"):
        judge.check(order(TRAPS[name]))
    assert time.perf_counter() - began < 10 * PATIENCE_S
    assert process.returncode == -signal.SIGKILL
    judge.check(order(schema(PERSON)))


@pytest.mark.parametrize("name", SLOW_MASKS)
def test_a_grammar_with_slow_masks_is_too_costly(name: str) -> None:
    patient = Judge(byte_level(), 60.0)
    with closing(patient), pytest.raises(TooCostly, match="s for a mask; at most 0.2 s"):
        patient.check(order(SLOW_MASKS[name]))


def test_ordinary_grammars_have_quick_masks(judge: Judge) -> None:
    member = {"type": "object", "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,100}$"},
        "count": {"type": "integer", "minimum": 0, "maximum": 1000},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 200}},
    }}  # fmt: skip
    large = schema({"type": "object", "properties": {f"p{n}": member for n in range(50)}})
    for params in (*GRAMMARS.values(), large):
        judge.check(order(params))


def test_a_process_that_was_killed_while_idle_is_started_again(judge: Judge) -> None:
    os.kill(process_of(judge).pid, signal.SIGKILL)
    process_of(judge).wait()
    judge.check(order(schema(PERSON)))


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (9, "takes too much time or memory to compile"),
        (11, "is beyond what the library can compile"),
    ],
)
def test_a_process_that_dies_of_a_grammar_makes_it_too_costly(number: int, told: str) -> None:
    patient = Judge(byte_level(), 20.0)
    patient.check(order(structure("regex", "a")))
    pid = process_of(patient).pid
    # As the system does where memory or processor time are used up, or the library fails.
    killer = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -{number} {pid}"])
    with pytest.raises(TooCostly, match=told):
        patient.check(order(TRAPS["negation"]))
    killer.wait()
    patient.close()


def test_memory_is_bounded(judge: Judge) -> None:
    limits = Path(f"/proc/{process_of(judge).pid}/limits")
    if not limits.exists():
        pytest.skip("reads /proc")
    lines = limits.read_text().splitlines()
    [line] = [line for line in lines if line.startswith("Max address space")]
    assert line.split()[3] == str(1 << 30)


def test_a_process_that_cannot_run_is_nobody_s_grammar_s_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judge_module, "_COMMAND", (sys.executable, "-c", "raise SystemExit(3)"))
    with pytest.raises(TrialBroken, match="ended with status 3"):
        Judge(byte_level()).check(order(schema(PERSON)))


def test_the_process_ends_with_whoever_started_it() -> None:
    judge = Judge(byte_level(), PATIENCE_S)
    judge.check(order(structure("regex", "a")))
    process = process_of(judge)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(10) == 0
    judge.close()


def test_the_program_loads_nothing_but_the_library() -> None:
    script = (
        "import sys, specd.structure.trial\n"
        "print(*(m for m in ('numpy', 'torch', 'grpc', 'anyio', 'tokenizers') if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
