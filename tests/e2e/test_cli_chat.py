"""`specd chat`: conversations from a pipe and at a terminal, with keys."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_cli_generate import guessing_daemon
from tests.e2e.test_start import free_port
from tests.support.commands import (
    CTRL_C,
    CTRL_D,
    PATIENCE_S,
    SPECD,
    specd,
    terminal,
    without_colours,
)
from tests.support.daemon import Daemon, daemon_process, environment, spawned

SHORT = ("--temperature", "0", "--ignore-eos", "--max-new-tokens", "12")
ENDLESS = ("--temperature", "0", "--ignore-eos")
PROMPT = "> "


@pytest.fixture(scope="module")
def long_daemon(long_toy: Path) -> Iterator[Daemon]:
    """A daemon whose answers do not end before a test does."""
    with daemon_process(long_toy) as daemon:
        yield daemon


def _piped(
    daemon: Daemon, *lines: str, flags: tuple[str, ...] = SHORT
) -> subprocess.CompletedProcess[str]:
    stdin = "".join(f"{line}\n" for line in lines).encode()
    return specd("chat", "--address", daemon.address, *flags, stdin=stdin)


def _documents(daemon: Daemon, *lines: str, flags: tuple[str, ...] = SHORT) -> list[dict[str, Any]]:
    done = _piped(daemon, *lines, flags=(*flags, "--json"))
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def _prompt_tokens(daemon: Daemon, *lines: str, flags: tuple[str, ...] = SHORT) -> list[int]:
    found = _documents(daemon, *lines, flags=flags)
    return [document["usage"]["prompt_tokens"] for document in found]


def _saved(path: Path) -> list[tuple[str, str]]:
    return [(said["role"], said["content"]) for said in json.loads(path.read_text())]


# At a pipe


def test_each_line_of_a_pipe_is_a_message_and_stdout_holds_the_answers(daemon: Daemon) -> None:
    first, second = _documents(daemon, "Hi", "And then?")
    done = _piped(daemon, "Hi", "", "  ", "And then?")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{first['text']}\n{second['text']}\n"
    assert first["finish_reason"] == "MAX_TOKENS" and len(first["token_ids"]) == 12


def test_an_answer_is_that_of_a_chat_request(daemon: Daemon) -> None:
    (answer,) = _documents(daemon, "Hi", flags=(*SHORT, "--system", "Be brief."))
    one = specd(
        *("generate", "--address", daemon.address, *SHORT, "--chat"),
        *("--system", "Be brief.", "--json", "Hi"),
    )
    document = json.loads(one.stdout.splitlines()[-1])
    assert answer["token_ids"] == document["token_ids"]
    assert answer["usage"] == document["usage"]


def test_what_was_said_goes_to_the_daemon_with_the_next_message(
    daemon: Daemon, tmp_path: Path
) -> None:
    path = tmp_path / "talk.json"
    first, second = _documents(daemon, "Hi", "And thén?", f"/save {path}")
    grown = second["usage"]["prompt_tokens"] - first["usage"]["prompt_tokens"]
    assert grown > 12, "the answer's 12 tokens and the second message"
    said = [("user", "Hi"), ("assistant", first["text"])]
    assert _saved(path) == [*said, ("user", "And thén?"), ("assistant", second["text"])]


def test_commands_change_what_the_daemon_is_sent(daemon: Daemon) -> None:
    alone, after = _prompt_tokens(daemon, "Hi", "Hi")
    assert _prompt_tokens(daemon, "Hi", "/undo", "Hi") == [alone, alone]
    assert _prompt_tokens(daemon, "Hi", "Hi", "/reset", "Hi") == [alone, after, alone]
    assert _prompt_tokens(daemon, "Hi", "Hi", "/retry") == [alone, after, after]
    (system,) = _prompt_tokens(daemon, "Hi", flags=(*SHORT, "--system", "Be brief."))
    lines = ("/system Be brief.", "Hi", "/reset", "Hi", "/reset", "/system", "Hi")
    assert _prompt_tokens(daemon, *lines) == [system, system, alone]
    assert _prompt_tokens(daemon, "Hi", "/exit", "Hi") == [alone]


def test_a_retry_answers_anew_with_what_was_said_before(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    flags = ("--temperature", "2", "--ignore-eos", "--max-new-tokens", "12")
    first, second = _documents(daemon, "Hi", "/retry", f"/save {path}", flags=flags)
    assert first["seed"] != second["seed"] and first["text"] != second["text"]
    assert _saved(path) == [("user", "Hi"), ("assistant", second["text"])]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/hello", ("/hello", "/help", "begin with a space")),
        ("/undo twice", ("/undo takes nothing",)),
        ("/undo", ("nothing to undo",)),
        ("/retry", ("nothing was asked",)),
        ("/save", ("not saved", "name of a file")),
        ("/save /nowhere/at/all", ("not saved", "No such file")),
        ("/save ~no-such-user/x", ("not saved",)),
        ("/save a\0b", ("not saved",)),
    ],
)
def test_a_command_that_cannot_be_done_is_told_and_the_next_line_answered(
    daemon: Daemon, line: str, words: tuple[str, ...]
) -> None:
    done = _piped(daemon, line, "Hi", flags=(*SHORT, "--json"))
    error, answer = (json.loads(text) for text in done.stdout.splitlines())
    assert (done.returncode, len(answer["token_ids"])) == (1, 12)
    assert done.stderr == f"specd: {error['error']}\n"
    for word in words:
        assert word in done.stderr


def test_a_slash_behind_a_space_is_said(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    _documents(daemon, " /etc/passwd", f"/save {path}")
    assert _saved(path)[0] == ("user", " /etc/passwd")


def test_a_file_that_is_there_is_not_written_over(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("precious")
    done = _piped(daemon, f"/save {path}")
    assert (done.returncode, done.stderr) == (1, f"specd: not saved: {path}: File exists\n")
    assert path.read_text() == "precious"


def test_a_line_that_is_no_text_is_told_and_the_next_answered(daemon: Daemon) -> None:
    arguments = ("chat", "--address", daemon.address, *SHORT)
    broken = specd(*arguments, stdin=b"caf\xe9\ncaf\xc3\xa9\r\nlast line without an end")
    whole = _piped(daemon, "café", "last line without an end")
    assert (broken.returncode, broken.stderr) == (1, "specd: the line is not utf-8\n")
    assert broken.stdout == whole.stdout


def test_a_conversation_beyond_the_context_is_refused_and_goes_on(daemon: Daemon) -> None:
    done = _piped(daemon, "Hi", "word " * 2000, "Hi", flags=(*SHORT, "--json"))
    first, error, second = (json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 1 and "CONTEXT_LENGTH_EXCEEDED" in error["error"]
    alone, after = _prompt_tokens(daemon, "Hi", "Hi")
    tokens = [document["usage"]["prompt_tokens"] for document in (first, second)]
    assert tokens == [alone, after], "what was refused is not part of the conversation"


def test_show_drafts_leaves_a_pipe_plain(daemon: Daemon) -> None:
    done = _piped(daemon, "Hi", flags=(*SHORT, "--show-drafts"))
    assert done.stdout == _piped(daemon, "Hi").stdout
    assert done.stderr.startswith("12 tokens in ")


def test_an_interrupt_at_a_pipe_ends_everything_with_130(long_daemon: Daemon) -> None:
    command = [str(SPECD), "chat", "--address", long_daemon.address, *ENDLESS]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, env=environment()) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"Hi\nHi\n")
        process.stdin.flush()
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (130, b"")
    long_daemon.wait_quiet()


def test_closed_streams_are_the_end_and_no_traceback(daemon: Daemon) -> None:
    command = f"'{SPECD}' chat --address {daemon.address} --max-new-tokens 1"
    lost = b"specd: cannot write the output: Bad file descriptor\n"
    for script, end in (
        (f"{command} <&-", (0, b"", b"")),
        (f"echo Hi | {command} >&-", (1, b"", lost)),
    ):
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, env=environment(), check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == end


# At a terminal


def test_a_terminal_shows_colours_and_answers_until_ctrl_d(toy: Path, tmp_path: Path) -> None:
    flags = ("--temperature", "0", "--ignore-eos", "--max-new-tokens", "120", "--show-drafts")
    messages = [{"role": "user", "content": "Hi"}]
    with guessing_daemon(toy, tmp_path / "recording.json", messages=messages) as daemon:
        (answer,) = _documents(daemon, "Hi", flags=flags[:-1])
        with terminal("chat", "--address", daemon.address, *flags) as shown:
            assert "/help lists the commands" in shown.wait_for("the target's own tokens")
            shown.wait_for(PROMPT)
            shown.type("Hi\r")
            shown.wait_for("[cut at --max-new-tokens]")
            shown.wait_for("accepted drafts per step")
            shown.wait_for(PROMPT)
            shown.type(CTRL_D)
            assert shown.wait_end() == 0
    assert answer["text"] in without_colours(shown.output)
    assert shown.output.count("\x1b[32m") > 1, "besides the legend"


def test_ctrl_c_stops_one_answer_and_the_conversation_goes_on(
    long_daemon: Daemon, tmp_path: Path
) -> None:
    path = tmp_path / "talk.json"
    with terminal("chat", "--address", long_daemon.address, *ENDLESS) as shown:
        shown.wait_for(PROMPT)
        for message in ("Hi", "And then?"):
            shown.type(f"{message}\r")
            shown.wait_for("\n")
            assert shown.wait_for("\n"), "some of the answer"
            shown.type(CTRL_C)
            shown.wait_for("[interrupted; what was said stays")
            shown.wait_for(PROMPT)
            long_daemon.wait_quiet()
        shown.type(f"/save {path}\r")
        shown.wait_for("saved: ")
        shown.wait_for(PROMPT)
        shown.type("/exit\r")
        assert shown.wait_end() == 0
    (_, hi), (_, answer), (_, then), (_, more) = _saved(path)
    assert (hi, then) == ("Hi", "And then?")
    output = shown.output.replace("^C", "")  # the terminal writes it into the answer
    assert answer and answer in output and more in output


def test_ctrl_c_at_the_prompt_is_status_130(daemon: Daemon) -> None:
    with terminal("chat", "--address", daemon.address) as shown:
        shown.wait_for(PROMPT)
        shown.press(CTRL_C)
        assert shown.wait_end() == 130
    assert "Traceback" not in shown.output


def test_a_person_is_told_how_to_make_room(daemon: Daemon) -> None:
    with terminal("chat", "--address", daemon.address, *SHORT) as shown:
        shown.wait_for(PROMPT)
        shown.type("Hi\r")
        shown.wait_for("[cut at --max-new-tokens]")
        shown.type("word " * 300 + "\r")
        shown.wait_for("CONTEXT_LENGTH_EXCEEDED")
        shown.wait_for("Make room with /undo or /reset, then /retry asks again.")
        shown.type("/reset\r")
        shown.wait_for("a new conversation")
        shown.type("/retry\r")
        shown.wait_for("The message is too long.")
        shown.wait_for(PROMPT)
        shown.type(CTRL_D)
        assert shown.wait_end() == 0


def test_a_daemon_that_went_away_can_be_asked_again_when_it_is_back(
    toy: Path, tmp_path: Path
) -> None:
    address, path = f"127.0.0.1:{free_port()}", tmp_path / "talk.json"
    with terminal("chat", "--address", address, *SHORT) as shown:
        assert shown.wait_end() == 1
    with ExitStack() as life:
        life.enter_context(spawned(toy, listen=address)).wait_ready()
        with terminal("chat", "--address", address, *SHORT) as shown:
            shown.wait_for(PROMPT)
            shown.type("Hi\r")
            shown.wait_for("[cut at --max-new-tokens]")
            life.close()
            shown.type("And then?\r")
            shown.wait_for("Nothing is lost: /retry asks again.")
            life.enter_context(daemon_process(toy, "--listen", address))
            shown.type("/retry\r")
            shown.wait_for("[cut at --max-new-tokens]")
            shown.type(f"/save {path}\r")
            shown.wait_for("saved: ")
    assert [content for role, content in _saved(path) if role == "user"] == ["Hi", "And then?"]
