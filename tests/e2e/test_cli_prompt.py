"""`specd generate -`: a prompt from stdin."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.support.commands import SPECD, specd
from tests.support.daemon import Daemon, environment

GREEDY = ("--temperature", "0", "--ignore-eos", "--max-new-tokens", "8", "--json")


def _document(daemon: Daemon, text: str, stdin: bytes = b"", *flags: str) -> dict[str, Any]:
    done = specd("generate", "--address", daemon.address, *GREEDY, *flags, text, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, "")
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(one["token_ids"] == other["token_ids"] and one["usage"] == other["usage"])


def test_a_dash_takes_the_prompt_from_stdin_without_the_end_of_its_last_line(
    daemon: Daemon,
) -> None:
    text = "def café():\n\n    return"
    given = _document(daemon, text)
    for end in ("", "\n", "\r\n"):
        assert _same(_document(daemon, "-", f"{text}{end}".encode()), given)
    assert _same(_document(daemon, "-", f"{text}\n\n".encode()), _document(daemon, f"{text}\n"))
    chat = _document(daemon, text, b"", "--chat")
    assert _same(_document(daemon, "-", text.encode(), "--chat"), chat)


def test_a_prompt_on_stdin_that_is_no_text_is_wrong_usage() -> None:
    done = specd("generate", "-", stdin=b"caf\xe9")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the prompt on stdin is not UTF-8: its byte 3 is wrong" in done.stderr


@pytest.mark.parametrize("stdin", [b"", b"a prompt"])
def test_without_a_prompt_the_dash_is_told(stdin: bytes) -> None:
    done = specd("generate", stdin=stdin)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("there is no prompt: give its text, or - to take it from stdin\n")


def test_a_closed_stdin_is_wrong_usage() -> None:
    done = subprocess.run(
        ["bash", "-c", f"'{SPECD}' generate - <&-"],
        capture_output=True,
        env=environment(),
        check=False,
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False)
    assert b"stdin, which is closed" in done.stderr
