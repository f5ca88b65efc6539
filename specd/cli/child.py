"""A daemon of one's own, as a process: started with some flags, stopped at the end.

Knows the ready file and the signal; nothing of what the daemon is wanted for.

Invariant: however the block is left, the process is gone.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.05
_START_LIMIT_S = 900.0  # a model of several gigabytes on a slow disk
_STOP_LIMIT_S = 40.0  # the default of --drain-seconds, and some
_LOG_LINES = 12


class DaemonFailed(Exception):
    """The daemon ended before it was ready, or did not end cleanly."""


@dataclass(frozen=True, slots=True)
class Child:
    """A daemon that is ready. address: where it takes calls."""

    address: str
    pid: int


@contextmanager
def running_daemon(
    *flags: str,
    waiting: Callable[[], object] = lambda: None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Child]:
    """Run `specd serve` with these flags on a free port of this machine.

    waiting: called again and again until the daemon is ready. env: None is this process's own.

    Raises:
        DaemonFailed: with the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="specd-") as folder:
        ready, log = Path(folder, "ready.json"), Path(folder, "log")
        command = [sys.executable, "-m", "specd.cli.main", "serve", "--listen", "127.0.0.1:0"]
        command += ["--admin-listen", f"unix:{folder}/admin", "--ready-file", str(ready)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *flags], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env
            )
        try:
            _wait_ready(process, ready, log, waiting)
            yield Child(json.loads(ready.read_text())["address"], process.pid)
        finally:
            status = _stopped(process)
        if status != 0:
            raise DaemonFailed(f"the daemon ended with status {status}: {_end_of(log)}")


def _wait_ready(
    process: subprocess.Popen[bytes], ready: Path, log: Path, waiting: Callable[[], object]
) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while not ready.exists():
        if process.poll() is not None:
            raise DaemonFailed(f"the daemon did not start: {_end_of(log)}")
        if time.monotonic() > deadline:
            limit = f"{_START_LIMIT_S:g} s"
            raise DaemonFailed(f"the daemon was not ready within {limit}: {_end_of(log)}")
        waiting()
        time.sleep(_POLL_S)


def _stopped(process: subprocess.Popen[bytes]) -> int:
    """Stop it, by force where it takes too long; returns its status."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(_STOP_LIMIT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _end_of(log: Path) -> str:
    """What the daemon said last: its own sentence where it refused to start."""
    lines = log.read_text(errors="replace").strip().splitlines()
    refusals = [line for line in lines if line.startswith("specd: ")]
    return "\n".join(refusals or lines[-_LOG_LINES:]).removeprefix("specd: ")
