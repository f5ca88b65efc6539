"""`specd serve` as people meet it: flags, help, a terminal, and what it leaves out of its log."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from specd_client import Client

from tests.e2e.calls import answer
from tests.support.commands import CTRL_C, SPECD, specd, terminal
from tests.support.daemon import environment, running_daemon, spawned

FAILED, WRONG_USAGE, START_FAILED = 1, 2, 3
HIDE_CURSOR, SHOW_CURSOR, ONE_UP, CLEAR = "\x1b[?25l", "\x1b[?25h", "\x1b[1A", "\x1b[2K"
COMMANDS = (
    ("serve", "--print-config"),
    ("generate", "x"),
    ("chat",),
    ("models", "list"),
    ("inspect", "x"),
    ("drain",),
)
DRAFTER = """
import threading
from drafters.ngram import NgramDrafter
threading.Thread(target=threading.Event().wait, name="stuck").start()
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--max-row", "3"),
        ("generate", "--temp", "1", "x"),
        ("models", "pull", "--sourc", "hub", "x"),
        ("drain", "--time", "1"),
        ("serve", "--no-such-flag"),
        ("models", "list", "--no-such-flag"),
    ],
)
def test_a_flag_that_is_not_there_is_told_with_the_usage_of_its_command(
    arguments: tuple[str, ...],
) -> None:
    done = specd(*arguments)
    flag = next(word for word in arguments if word.startswith("--"))
    command = " ".join(arguments[: arguments.index(flag)])
    assert done.returncode == WRONG_USAGE
    assert done.stderr.startswith(f"usage: specd {command} ")
    assert f"specd {command}: error: unrecognized arguments: {flag}" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_variable_is_an_error_for_every_command(command: tuple[str, ...]) -> None:
    done = specd(*command, env={"SPECD_ADRESS": "127.0.0.1:1"})
    assert done.returncode == WRONG_USAGE
    assert done.stderr == "specd: unknown environment variables: SPECD_ADRESS\n"


@pytest.mark.parametrize("command", ["serve --print-config", "models list --json", "--help"])
@pytest.mark.parametrize(
    ("output", "reason"),
    [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")],
)
def test_an_output_that_takes_nothing_is_told(command: str, output: str, reason: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"'{SPECD}' {command} {output}"],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.returncode == FAILED
    assert done.stderr == f"specd: cannot write the output: {reason}\n"


def test_help_lists_what_may_be_given_and_what_holds_without() -> None:
    told = " ".join(specd("serve", "--help").stdout.split())
    for words in (
        "--weights auto|fp32|bf16|int8|int4",
        "--kernels auto|avx512-bf16|avx512|avx2|torch",
        "--invariance strict|relaxed",
        "--log-level DEBUG|INFO|WARNING|ERROR",
        "[a quarter of the free memory]",
        "--insecure [true|false]",
    ):
        assert words in told
    assert "[None]" not in told


def test_a_failed_start_is_one_sentence(toy: Path, tmp_path: Path) -> None:
    with spawned(toy, "--drafter", "eagle") as daemon:
        assert daemon.wait_exit() == START_FAILED
        assert len(daemon.log.splitlines()) == 1
    with spawned(toy, listen=f"unix:{tmp_path}/no/s") as daemon:
        assert daemon.wait_exit() == START_FAILED
        expected = f"specd: cannot listen on unix:{tmp_path}/no/s: there is no folder {tmp_path}/no"
        assert daemon.log.splitlines() == [expected]


def test_at_a_terminal_the_bars_go_and_log_lines_stand_alone(slow_toy: Path) -> None:
    flags = ("--model", str(slow_toy), "--threads", "1", "--listen", "127.0.0.1:0")
    # Torch warms up many shapes, the core one, which may pass between two looks at the bar.
    with terminal("serve", *flags, "--kernels", "torch", "--max-step-tokens", "4096") as shown:
        shown.wait_for("warming up")
        shown.wait_for("admin calls on")
        shown.type(CTRL_C)
        assert shown.wait_end() == 0
    *bars, after = shown.output.split(SHOW_CURSOR)
    assert bars and all(drawn.count(HIDE_CURSOR) == 1 for drawn in bars)
    assert after.startswith(f"\r{ONE_UP}{CLEAR}20"), "the bar is gone when the log goes on"
    assert "INFO specd.app: serving" in after
    assert len([line for line in after.splitlines() if " INFO " in line]) == 4


@pytest.mark.asyncio
async def test_debug_is_about_specd_and_not_about_its_libraries(toy: Path) -> None:
    async with running_daemon(toy, "--log-level", "DEBUG") as daemon:
        async with Client(daemon.address) as client:
            await answer(client, max_new_tokens=1)
        loggers = {line.split()[3] for line in daemon.log.splitlines() if " DEBUG " in line}
        assert {name for name in loggers if not name.startswith("specd")} == set()
        assert "asyncio" not in daemon.log


@pytest.mark.parametrize("model_is_there", [True, False])
def test_a_thread_that_never_ends_holds_up_no_end_and_changes_no_status(
    toy: Path, tmp_path: Path, model_is_there: bool
) -> None:
    (tmp_path / "stuck.py").write_text(DRAFTER)
    model = toy if model_is_there else tmp_path / "none.gguf"
    flags = ("--drafter", "stuck:NgramDrafter")
    with spawned(model, *flags, cwd=tmp_path) as daemon:
        if model_is_there:
            daemon.wait_ready()
            daemon.terminate()
        assert daemon.wait_exit() == (0 if model_is_there else START_FAILED)
        assert "ending while stuck is still at work" in daemon.log
