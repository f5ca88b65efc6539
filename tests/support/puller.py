"""Pulls of a toy model as processes, and pulls that are killed in the middle.

Knows `specd models pull` as a command; its sources are those of `fake_hosts.py`.
Invariant: however a test ends, its processes are gone.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specd.model.catalog import CatalogModel
from tests.support.daemon import environment
from tests.support.fake_hosts import FakeHub, FakeIndex
from tests.support.toy_wheels import write_catalog

NUM_PARTS = 4
NUM_BYTES = 3_000_000
LIMIT_S = 60
HUB_NAME = "toys/Toy-GGUF/toy.gguf"


@dataclass
class Puller:
    """Runs the command line with a toy in its catalog, an own cache, and two sources."""

    folder: Path
    variables: dict[str, str]

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def file(self) -> Path:
        return self.cache / "toy.gguf"

    @property
    def left_over(self) -> list[str]:
        """What lies in the cache beside locks, with folders that hold nothing left out."""
        files = (path for path in self.cache.rglob("*") if path.is_file())
        return sorted(
            path.relative_to(self.cache).as_posix() for path in files if path.suffix != ".lock"
        )

    def know(self, model: CatalogModel) -> None:
        write_catalog(self.folder / "catalog.json", [model])

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "tests.support.toy_wheels", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "SPECD_CACHE": str(self.cache),
            "TOY_CATALOG": str(self.folder / "catalog.json"),
            "HF_HOME": str(self.folder / "hub-home"),
        }
        return environment(own | self.variables)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            encoding="utf-8",
            env=self.environment,
            timeout=LIMIT_S,
            check=False,
        )

    def pull(self, *flags: str, name: str = "toy") -> dict[str, Any]:
        """Pull well, and return the document."""
        done = self.run("models", "pull", "--json", name, *flags)
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def fail(self, *flags: str, name: str = "toy") -> str:
        """Pull without luck, and return the one sentence."""
        done = self.run("models", "pull", "--json", name, *flags)
        assert done.returncode == 1, (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        message = str(json.loads(done.stdout)["error"])
        assert done.stderr.splitlines()[-1] == f"specd: {message}"
        return message

    @contextmanager
    def started(self, *flags: str, name: str = "toy") -> Iterator[subprocess.Popen[str]]:
        """A pull under way; it is gone at the end."""
        with subprocess.Popen(
            self.command("models", "pull", "--json", name, *flags),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=self.environment,
        ) as process:
            try:
                yield process
            finally:
                process.kill()


def files_of(index: FakeIndex) -> list[str]:
    """The wheels that were asked for, in order."""
    return [asked.path.removeprefix("/files/") for asked in index.bodies("/files/")]


def kill_when_held(puller: Puller, index: FakeIndex, *flags: str) -> None:
    """Start a pull and kill it, without warning, once the index holds an answer back."""
    with puller.started(*flags) as process:
        assert index.held.wait(LIMIT_S)
        process.kill()
        process.wait()
    index.release()


def wait_shown(process: subprocess.Popen[str], percent: int) -> None:
    """Wait until a pull has told that so much is there."""
    assert process.stderr is not None
    for line in process.stderr:
        found = re.search(r"(\d+)%", line)
        if found and int(found[1]) >= percent:
            return
    raise AssertionError("the pull ended before")


def kill_in_the_middle(puller: Puller, hub: FakeHub) -> None:
    """Start a pull from the hub and kill it, without warning, when most has come."""
    hub.hold_path, hub.hold_after = "/storage/", 2_500_000
    with puller.started("--source", "hub") as process:
        wait_shown(process, 80)
        process.kill()
        process.wait()
    hub.release()
