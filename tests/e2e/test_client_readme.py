"""The programs in the clients' READMEs run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, environment

README = Path(__file__).parents[2] / "clients" / "python" / "README.md"
ADDRESS = "localhost:50051"
PROGRAMS = [
    program
    for program in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    if ADDRESS in program
]


def test_there_is_a_program_for_each_form_and_one_for_details() -> None:
    assert len(PROGRAMS) == 3


@pytest.mark.parametrize("program", PROGRAMS, ids=["async", "sync", "details"])
def test_a_program_of_the_readme_runs(program: str, daemon: Daemon) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace(ADDRESS, daemon.address)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
