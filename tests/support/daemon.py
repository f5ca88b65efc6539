"""Runs the daemon as its users do: a process of its own, a real socket, signals.

Knows the command line, the ready file and the log; nothing of specd's inside. `daemon_process` and
`running_daemon` also check what every healthy daemon promises at its end: nothing leaked, exit
status 0, and a log without a traceback. `spawned` checks nothing, for daemons that shall not start
or not end well.
Invariant: however a test ends, its process is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import grpc
from specd_client.v1 import model_pb2, model_pb2_grpc

# Bounds of waits that end by themselves long before; a start takes 2 to 3 s on a quiet machine.
START_LIMIT_S = 120.0
STOP_LIMIT_S = 30.0
QUIET_LIMIT_S = 10.0
POLL_S = 0.01

ROOT = Path(__file__).parents[2]
HELD = ("running", "waiting", "pages_used", "slots_used", "drafter_sessions")
# What asyncio, grpc and the daemon itself write when something went wrong unnoticed.
ALARMS = ("Traceback", "was destroyed", "never retrieved", "never awaited", "internal error")
_RECORD = re.compile(r"^(?=\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} )", re.MULTILINE)
_DRAFTER_FAILED = re.compile(r"^\S+ \S+ WARNING specd.drafting: drafter \S+ failed with ")


class DaemonFailed(AssertionError):
    """The process broke a promise; the message holds its log."""


class Daemon:
    """One daemon process. Addresses and `pid` are those of the ready file."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self.ready_file = folder / "ready.json"
        self._log = folder / "log"
        self.address = self.admin_address = ""
        self.pid = process.pid

    @property
    def log(self) -> str:
        """Everything on stdout and stderr until now."""
        return self._log.read_text(errors="replace")

    def wait_ready(self) -> None:
        """Wait for the ready file. Raises DaemonFailed if the process ends instead."""
        self.wait_until(self.ready_file.exists, START_LIMIT_S, "it did not get ready")
        ready = json.loads(self.ready_file.read_text())
        self.address, self.pid = ready["address"], ready["pid"]
        self.admin_address = ready["admin_address"]

    def wait_logged(self, text: str) -> None:
        """Wait until the log holds `text`. Raises DaemonFailed if the process ends instead."""
        self.wait_until(lambda: text in self.log, START_LIMIT_S, f"{text!r} was not logged")

    def wait_until(self, is_so: Callable[[], bool], limit_s: float, else_what: str) -> None:
        """Poll until `is_so`, the process has ended, or `limit_s` have passed."""
        deadline = time.monotonic() + limit_s
        while not is_so():
            if self.process.poll() is not None and not is_so():
                raise DaemonFailed(f"{else_what}; exit {self.process.returncode}:\n{self.log}")
            if time.monotonic() > deadline:
                raise DaemonFailed(f"{else_what} within {limit_s:g} s:\n{self.log}")
            time.sleep(POLL_S)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def wait_exit(self, limit_s: float = STOP_LIMIT_S) -> int:
        """Wait for the end of the process; returns its status."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise DaemonFailed(f"still running after {limit_s:g} s:\n{self.log}") from None

    def wait_quiet(self) -> None:
        """Wait until no request holds anything. Raises DaemonFailed with what is left."""
        with grpc.insecure_channel(self.address) as channel:
            stub = model_pb2_grpc.ModelServiceStub(channel)
            deadline = time.monotonic() + QUIET_LIMIT_S
            while held := _held(stub.GetServerInfo(model_pb2.GetServerInfoRequest()).info):
                if time.monotonic() > deadline:
                    raise DaemonFailed(f"it still holds {held}:\n{self.log}")
                time.sleep(POLL_S)

    def check_log(self, *, with_failing_drafters: bool = False) -> None:
        """Raises DaemonFailed if the log tells of something that nobody meant to happen.

        with_failing_drafters: tracebacks that name a drafter are expected.
        """
        for record in _RECORD.split(self.log):
            if with_failing_drafters and _DRAFTER_FAILED.match(record):
                continue
            if any(alarm in record for alarm in ALARMS):
                raise DaemonFailed(f"in the log:\n{record}")


def _held(info: model_pb2.ServerInfo) -> dict[str, int]:
    return {name: held for name in HELD if (held := getattr(info.counters, name))}


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without settings of the daemon; the cache stays."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith("SPECD_") or name == "SPECD_CACHE"
    }
    return kept | dict(extra or {})


@contextmanager
def spawned(
    model: Path | str,
    *flags: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    listen: str = "127.0.0.1:0",
    module: str = "specd.cli.main",
) -> Iterator[Daemon]:
    """Start `specd serve` and wait for nothing; the process is killed at the end if it lives.

    Its admin socket is in a folder of its own, unless `env` or a flag says otherwise.
    """
    with tempfile.TemporaryDirectory(prefix="specd-test-") as name, ExitStack() as stack:
        folder = Path(name)
        log = stack.enter_context((folder / "log").open("wb"))
        command = [sys.executable, "-m", module, "serve", "--model", str(model)]
        command += ["--listen", listen, "--ready-file", str(folder / "ready.json")]
        process = subprocess.Popen(
            [*command, "--threads", "1", *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Drafters of tests import what they share with the benchmarks, from wherever it runs.
            env=environment({"XDG_RUNTIME_DIR": name, "PYTHONPATH": str(ROOT), **(env or {})}),
            cwd=cwd,
        )
        try:
            yield Daemon(process, folder)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


@contextmanager
def daemon_process(
    model: Path | str,
    *flags: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    with_failing_drafters: bool = False,
) -> Iterator[Daemon]:
    """A daemon that is ready, and whose end is checked."""
    with spawned(model, *flags, env=env, cwd=cwd) as daemon:
        daemon.wait_ready()
        yield daemon
        daemon.wait_quiet()
        daemon.terminate()
        status = daemon.wait_exit()
        if status != 0:
            raise DaemonFailed(f"it ended with status {status}:\n{daemon.log}")
        daemon.check_log(with_failing_drafters=with_failing_drafters)


@asynccontextmanager
async def running_daemon(
    model: Path | str,
    *flags: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    with_failing_drafters: bool = False,
) -> AsyncIterator[Daemon]:
    """`daemon_process` for a test's own event loop, which stays free while it starts and stops."""
    process = daemon_process(
        model, *flags, env=env, cwd=cwd, with_failing_drafters=with_failing_drafters
    )
    daemon = await asyncio.to_thread(process.__enter__)
    try:
        yield daemon
    except BaseException as error:
        if not await asyncio.to_thread(process.__exit__, type(error), error, None):
            raise
    else:
        await asyncio.to_thread(process.__exit__, None, None, None)


def resident_bytes(pid: int) -> int:
    """Resident memory in bytes; 0 where there is no /proc."""
    statm = Path(f"/proc/{pid}/statm")
    return int(statm.read_text().split()[1]) * 4096 if statm.exists() else 0
