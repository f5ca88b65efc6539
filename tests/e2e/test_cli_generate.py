"""`specd generate --show-drafts`, at a terminal and at a pipe; and where it calls."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from specd_client import Client, SpeculationStep

from specd.cli.origins import origins_of
from tests.e2e.calls import PROMPT, detokenized
from tests.e2e.drafters_under_test import RECORDING, spec
from tests.support.commands import colours_of, specd, terminal, without_colours
from tests.support.daemon import Daemon, daemon_process

DRAFTER = spec("ragged")
GREEN = "\x1b[32m"
GREEDY = ("--temperature", "0", "--ignore-eos", "--max-new-tokens", "120")


@contextmanager
def guessing_daemon(toy: Path, recording: Path, **prompt: Any) -> Iterator[Daemon]:
    """A daemon whose drafter knows the answer to a prompt and is right every now and then."""
    env, here = {RECORDING: str(recording)}, Path(__file__).parent
    flags = ("--weights", "fp32", "--drafter", DRAFTER)
    with daemon_process(toy, *flags, env=env, cwd=here) as daemon:
        text = asyncio.run(_recorded(daemon.address, **prompt))
        recording.write_text(json.dumps([text]))
        yield daemon


async def _recorded(address: str, **prompt: Any) -> list[int]:
    plain: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "speculation": False}
    async with Client(address) as client:
        run = await client.generate(**prompt, **plain, max_new_tokens=120, return_token_ids=True)
        return [*await client.tokenize(**prompt), *run.token_ids]


@pytest.fixture(scope="module")
def guessing(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    recording = tmp_path_factory.mktemp("guessing") / "recording.json"
    with guessing_daemon(toy, recording, text=PROMPT) as daemon:
        yield daemon


def _arguments(address: str, *flags: str) -> tuple[str, ...]:
    return ("generate", "--address", address, *GREEDY, *flags, PROMPT)


def _at_terminal(
    daemon: Daemon, tmp_path: Path, *flags: str, env: dict[str, str] | None = None
) -> tuple[str, str]:
    """stdout and stderr of a command whose stdout is a terminal."""
    notes = tmp_path / "stderr"
    with terminal(*_arguments(daemon.address, *flags), stderr=notes, env=env) as shown:
        assert shown.wait_end() == 0
    return shown.output, notes.read_text()


async def _expected(client: Client, document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each character with the colour of the token that completes it, by the daemon's word alone."""
    ids = document["token_ids"]
    steps = [SpeculationStep(**step) for step in document["steps"]]
    text, start, found = document["text"], 0, []
    for place, from_draft in enumerate(origins_of(steps, len(ids)), 1):
        prefix = await detokenized(client, ids[:place])
        # An incomplete character is a U+FFFD, unless one stands there to the end.
        end = len(prefix) if text.startswith(prefix) else len(prefix) - 1
        found += [(character, GREEN if from_draft else "") for character in text[start:end]]
        start = max(start, end)
    return iter(found)


@pytest.mark.asyncio
async def test_a_terminal_shows_accepted_drafts_in_a_colour_of_their_own(
    guessing: Daemon, tmp_path: Path
) -> None:
    shown, _ = _at_terminal(guessing, tmp_path, "--show-drafts", "--json")
    painted, _, last = shown.removesuffix("\n").rpartition("\n")
    async with Client(guessing.address) as client:
        expected = list(await _expected(client, json.loads(last)))
    assert list(colours_of(painted)) == expected
    assert {colour for _, colour in expected} == {GREEN, ""}


def test_the_text_is_the_same_bytes_with_and_without_colours(
    guessing: Daemon, tmp_path: Path
) -> None:
    plain = specd(*_arguments(guessing.address)).stdout
    painted, _ = _at_terminal(guessing, tmp_path, "--show-drafts")
    assert painted != plain
    assert without_colours(painted) == plain
    stop = plain[40:46]
    painted, _ = _at_terminal(guessing, tmp_path, "--show-drafts", "--stop", stop)
    assert without_colours(painted) == specd(*_arguments(guessing.address, "--stop", stop)).stdout


def test_a_terminal_is_told_the_colours_and_then_the_figures(
    guessing: Daemon, tmp_path: Path
) -> None:
    shown, notes = _at_terminal(guessing, tmp_path, "--show-drafts", "--json")
    legend, figures = notes.splitlines()
    assert legend == "green: accepted drafts; the rest: the target's own tokens"
    total = json.loads(shown.splitlines()[-1])["speculation"]["total"]
    accepted, steps = total["accepted_draft_tokens"], total["verify_steps"]
    assert figures.startswith(f"120 tokens in {steps} steps, ")
    assert re.search(r", \d+ tokens/s; ", figures)
    assert f"; {accepted} of {total['draft_tokens']} drafts accepted, " in figures
    assert f"{accepted / steps:.2f} accepted drafts per step; drafters: {DRAFTER}" in figures


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_a_terminal_without_colours_gets_the_text_and_no_legend(
    daemon: Daemon, tmp_path: Path, variable: str
) -> None:
    env = {variable: {"NO_COLOR": "1", "TERM": "dumb"}[variable]}
    shown, notes = _at_terminal(daemon, tmp_path, "--show-drafts", env=env)
    assert shown == specd(*_arguments(daemon.address)).stdout
    assert len(notes.splitlines()) == 1 and "drafters: ngram" in notes


def test_a_pipe_gets_the_text_and_stderr_the_figures(daemon: Daemon) -> None:
    plain = specd(*_arguments(daemon.address))
    done = specd(*_arguments(daemon.address, "--show-drafts"), env={"FORCE_COLOR": "1"})
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    assert "\x1b" not in without_colours(done.stderr)
    assert "accepted drafts per step" in done.stderr and "green" not in done.stderr


def test_plain_decoding_shows_no_drafts(daemon: Daemon, tmp_path: Path) -> None:
    shown, notes = _at_terminal(daemon, tmp_path, "--show-drafts", "--no-speculation")
    assert shown == without_colours(shown)
    figures = notes.splitlines()[-1]
    assert figures.startswith("120 tokens in 120 steps") and figures.endswith("; no drafts")


def test_steps_are_in_the_document_only_where_drafts_are_shown(daemon: Daemon) -> None:
    with_steps = specd(*_arguments(daemon.address, "--show-drafts", "--json")).stdout
    without = specd(*_arguments(daemon.address, "--json")).stdout
    steps = json.loads(with_steps.splitlines()[-1])["steps"]
    assert sum(step["accepted_draft_tokens"] + 1 for step in steps) in {120, 121}
    assert "steps" not in json.loads(without.splitlines()[-1])


def test_the_address_comes_from_the_environment_unless_a_flag_names_it(daemon: Daemon) -> None:
    short = ("generate", "--max-new-tokens", "1", PROMPT)
    assert specd(*short, env={"SPECD_ADDRESS": daemon.address}).returncode == 0
    flag = ("--address", daemon.address)
    assert specd(*short, *flag, env={"SPECD_ADDRESS": "unix:/nowhere"}).returncode == 0


def test_a_socket_is_an_address(toy: Path, tmp_path: Path) -> None:
    with daemon_process(toy, "--listen", f"unix:{tmp_path}/specd.sock") as daemon:
        done = specd(*_arguments(f"unix:{tmp_path}/specd.sock"))
        assert (done.returncode, done.stderr) == (0, "")
        assert daemon.address


@pytest.mark.parametrize("address", ["localhost", "localhost:0", "localhost:65536", "unix:", "x y"])
def test_what_is_no_address_is_status_two(address: str) -> None:
    for done in (
        specd("generate", "--address", address, "x"),
        specd("chat", env={"SPECD_ADDRESS": address}),
    ):
        assert (done.returncode, done.stdout) == (2, "")
        assert "--address" in done.stderr and "Traceback" not in done.stderr
