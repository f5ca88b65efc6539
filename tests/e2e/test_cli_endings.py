"""How an answer ends before its end: the daemon stops it, the context is full, Ctrl-C."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from specd_client.sync import Client

from tests.e2e.calls import PROMPT
from tests.support.commands import CTRL_C, PATIENCE_S, SPECD, specd, terminal
from tests.support.daemon import Daemon, environment, spawned

ENDLESS = ("--temperature", "0", "--ignore-eos")
ENDED = b"specd: the daemon ended the answer\n"


@pytest.fixture
def drained(long_toy: Path) -> Iterator[Daemon]:
    """A daemon that a test may drain."""
    with spawned(long_toy) as daemon:
        daemon.wait_ready()
        yield daemon


@contextmanager
def _answering(daemon: Daemon, *command: str, stdin: bytes) -> Iterator[subprocess.Popen[bytes]]:
    """A command whose answer has begun."""
    with subprocess.Popen(
        [str(SPECD), *command, "--address", daemon.address, *ENDLESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(stdin)
            process.stdin.close()
            process.stdin = None
            daemon.wait_until(lambda: _is_running(daemon), PATIENCE_S, "no request came")
            yield process
        finally:
            process.kill()


def _is_running(daemon: Daemon) -> bool:
    with Client(daemon.address) as client:
        return bool(client.server_info().counters.running)


def _drain(daemon: Daemon) -> None:
    done = specd("drain", "--admin-address", daemon.admin_address, "--timeout", "0", "--json")
    assert json.loads(done.stdout) == {"finished": 0, "aborted": 1}


@pytest.mark.parametrize("command", [("generate", PROMPT), ("chat",)], ids=["generate", "chat"])
def test_an_answer_that_the_daemon_ends_is_told_and_is_status_one(
    drained: Daemon, command: tuple[str, ...]
) -> None:
    with _answering(drained, *command, stdin=b"Hi\n") as process:
        _drain(drained)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (1, ENDED)


@pytest.mark.parametrize("command", [("generate", PROMPT), ("chat",)], ids=["generate", "chat"])
def test_the_document_of_an_answer_that_the_daemon_ends_is_printed(
    drained: Daemon, command: tuple[str, ...]
) -> None:
    with _answering(drained, *command, "--json", stdin=b"Hi\n") as process:
        _drain(drained)
        output, errors = process.communicate(timeout=PATIENCE_S)
    document: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert document["finish_reason"] == "ABORTED"
    assert (process.returncode, errors) == (1, ENDED)


def test_a_full_context_is_noted_and_is_status_zero(daemon: Daemon) -> None:
    for command, stdin in ((("generate", PROMPT), b""), (("chat",), b"Hi\n")):
        done = specd(*command, "--address", daemon.address, *ENDLESS, "--json", stdin=stdin)
        document = json.loads(done.stdout.splitlines()[-1])
        assert document["finish_reason"] == "CONTEXT_LENGTH"
        assert (done.returncode, done.stderr) == (0, "[cut: the context is full]\n")


def test_an_answer_that_is_as_long_as_it_may_be_is_silent(daemon: Daemon) -> None:
    short = ("--address", daemon.address, "--max-new-tokens", "3", "--ignore-eos")
    assert specd("generate", *short, PROMPT).stderr == ""


def test_ctrl_c_leaves_the_line_says_so_and_is_status_130(long_toy: Path) -> None:
    with spawned(long_toy) as daemon:
        daemon.wait_ready()
        arguments = ("generate", "--address", daemon.address, *ENDLESS, PROMPT)
        with terminal(*arguments) as shown:
            shown.wait_for(" ")
            shown.type(CTRL_C)
            assert shown.wait_end() == 130
        daemon.wait_quiet()
    assert shown.output.endswith("\nspecd: interrupted\n")
