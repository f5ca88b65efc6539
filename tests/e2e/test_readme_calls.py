"""The commands of the README stream from a fresh daemon, as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, daemon_process, environment

ROOT = Path(__file__).parents[2]
ADDRESS = "127.0.0.1:50051"
PATIENCE_S = 60


def _commands() -> list[str]:
    section = (ROOT / "README.md").read_text().split("\n## Call it\n")[1].split("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


@pytest.fixture(scope="module")
def fresh(toy: Path) -> Iterator[Daemon]:
    with daemon_process(toy) as daemon:
        yield daemon


@pytest.mark.parametrize("tool", ["buf", "python", "node"])
def test_a_command_of_the_readme_streams(fresh: Daemon, tool: str) -> None:
    (command,) = [command for command in _commands() if command.startswith(tool)]
    assert ADDRESS in command
    here = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["sh", "-c", command.replace(ADDRESS, fresh.address)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment({"PATH": here + os.pathsep + os.environ["PATH"]}),
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for word in ("started", "delta", "finished"):
        assert word in done.stdout.lower(), done.stdout
    assert done.stdout.lower().rindex("delta") < done.stdout.lower().rindex("finished")
