"""What the commands say where nobody answers, and when they try again."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from specd.cli.main import main
from tests.e2e.test_start import free_port
from tests.support.commands import specd
from tests.support.scripted_server import (
    HEL,
    NOT_SERVED,
    QUEUE_FULL,
    STARTED,
    WHOLE,
    Refusal,
    Scripted,
    listening,
    play,
    play_and_fail,
    play_and_hang,
)

HOW_ON = "start the daemon with `specd serve`, or give its address with --address"
COMMANDS = pytest.mark.parametrize("command", [("generate", "x"), ("chat",)], ids=lambda c: c[0])
# gRPC's four pauses between its attempts last 1.2 s and more.
QUICK_S = 1.0


@COMMANDS
def test_nobody_there_is_one_sentence_with_the_cause_and_what_to_do(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    for address, cause in (
        (f"127.0.0.1:{free_port()}", "Connection refused"),
        (f"unix:{tmp_path}/none", "No such file or directory"),
    ):
        done = specd(*command, "--json", "--address", address, stdin=b"Hi\nHi\n")
        message = json.loads(done.stdout)["error"]
        assert message == f"nobody answers at {address} ({cause}); {HOW_ON}"
        assert (done.returncode, done.stderr) == (1, f"specd: {message}\n")


def test_nobody_is_waited_for_where_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{free_port()}"
    main(["generate", "--address", address, "x"])  # imports what takes its time
    started_s = time.monotonic()
    assert main(["generate", "--address", address, "x"]) == 1
    assert time.monotonic() - started_s < QUICK_S
    assert address in capsys.readouterr().err


@pytest.mark.asyncio
@pytest.mark.parametrize("refusal", [QUEUE_FULL, NOT_SERVED], ids=lambda one: one.reason)
async def test_a_daemon_that_refuses_is_asked_again(refusal: Refusal) -> None:
    scripted = Scripted(play(*WHOLE))
    scripted.refusals = [refusal, refusal]
    async with listening(scripted) as address:
        done = await asyncio.to_thread(specd, "generate", "--address", address, "x")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello\n", "")
    assert len(scripted.arrivals_s) == 3


@pytest.mark.asyncio
async def test_a_refusal_that_lasts_is_told_in_the_daemon_s_words() -> None:
    scripted = Scripted(play(*WHOLE))
    scripted.refusals = [NOT_SERVED] * 10
    async with listening(scripted) as address:
        done = await asyncio.to_thread(specd, "generate", "--address", address, "x")
    assert done.stderr == "specd: not serving: draining [NOT_SERVING]\n"


@pytest.mark.asyncio
async def test_no_second_attempt_is_made_beyond_the_timeout() -> None:
    scripted = Scripted(play(*WHOLE))
    scripted.refusals = [Refusal(QUEUE_FULL.code, "full", "QUEUE_FULL", pushback_ms=2_100)]
    async with listening(scripted) as address:
        flags = ("--address", address, "--timeout", "2")
        done = await asyncio.to_thread(specd, "generate", *flags, "x")
    assert (done.returncode, done.stderr) == (1, "specd: full [QUEUE_FULL]\n")
    assert len(scripted.arrivals_s) == 1


@pytest.mark.asyncio
async def test_a_connection_that_breaks_in_an_answer_is_not_called_an_absence() -> None:
    gone = Refusal(NOT_SERVED.code, "gone")
    async with listening(Scripted(play_and_fail(gone, STARTED, HEL))) as address:
        done = await asyncio.to_thread(specd, "generate", "--address", address, "x")
    assert (done.returncode, done.stdout) == (1, "Hel")
    assert done.stderr == f"specd: the connection to {address} broke off (gone)\n"


@pytest.mark.asyncio
async def test_a_timeout_says_which() -> None:
    async with listening(Scripted(play_and_hang(STARTED, HEL))) as address:
        flags = ("--address", address, "--timeout", "0.5")
        done = await asyncio.to_thread(specd, "generate", *flags, "x")
    told = "the answer was not complete within 0.5 s, the --timeout [DEADLINE_EXCEEDED]"
    assert (done.returncode, done.stderr) == (1, f"specd: {told}\n")
