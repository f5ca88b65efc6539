"""`specd generate` and `chat`: penalties, structures, several sequences and log probabilities."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.calls import PROMPT
from tests.support.commands import specd, terminal, without_colours
from tests.support.daemon import Daemon

GREEDY = ("--temperature", "0", "--ignore-eos", "--max-new-tokens", "8")


def _document(daemon: Daemon, *arguments: str) -> dict[str, Any]:
    done = specd("generate", "--address", daemon.address, "--json", *arguments, PROMPT)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def test_penalties_and_biases_do_what_they_say(daemon: Daemon) -> None:
    biases = ("--logit-bias", "65=1000", "--logit-bias", "66=850")
    penalties = ("--presence-penalty", "100", "--frequency-penalty", "100")
    flags = (*biases, *penalties, "--temperature", "0", "--max-new-tokens", "4")
    assert _document(daemon, *flags)["token_ids"] == [65, 66, 65, 65]


def test_an_answer_has_the_form_of_a_schema_in_a_file(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"enum": ["port é"]}', encoding="utf-8")
    document = _document(daemon, "--json-schema", f"@{path}")
    assert json.loads(document["text"]) == "port é"
    assert document["finish_reason"] == "EOS_TOKEN"


def test_the_document_holds_each_sequence_and_its_seed(daemon: Daemon) -> None:
    flags = ("--ignore-eos", "--max-new-tokens", "8")
    document = _document(daemon, *flags, "--num-sequences", "3", "--seed", "5")
    first, _, last = document["sequences"]
    assert (first["seed"], first["token_ids"]) == (5, document["token_ids"])
    alone = _document(daemon, *flags, "--seed", str(last["seed"]))
    assert (alone["text"], alone["token_ids"]) == (last["text"], last["token_ids"])
    assert "sequences" not in alone
    assert document["usage"]["completion_tokens"] == 24


@pytest.mark.parametrize("at_terminal", [False, True])
def test_people_see_the_sequences_one_behind_the_other(
    daemon: Daemon, tmp_path: Path, at_terminal: bool
) -> None:
    flags = ("--ignore-eos", "--max-new-tokens", "8", "--num-sequences", "3", "--seed", "5")
    texts = [sequence["text"] for sequence in _document(daemon, *flags)["sequences"]]
    arguments = ("generate", "--address", daemon.address, *flags, PROMPT)
    if at_terminal:
        notes = tmp_path / "stderr"
        with terminal(*arguments, "--show-drafts", stderr=notes) as shown:
            assert shown.wait_end() == 0
        output, errors = without_colours(shown.output), notes.read_text()
    else:
        done = specd(*arguments)
        output, errors = done.stdout, done.stderr
    assert output == "".join(f"{text}\n" for text in texts)
    heads = [line for line in errors.splitlines() if line.startswith("[")]
    assert [head.partition(", ")[0] for head in heads] == ["[1 of 3", "[2 of 3", "[3 of 3"]
    assert heads[0] == "[1 of 3, seed 5]"


def test_log_probabilities_are_in_the_document(daemon: Daemon) -> None:
    flags = ("--top-logprobs", "2", "--prompt-logprobs", "0")
    document = _document(daemon, *GREEDY, *flags)
    entries = document["logprobs"]
    assert [entry["token_id"] for entry in entries] == document["token_ids"]
    assert {(entry["rank"], len(entry["alternatives"])) for entry in entries} == {(1, 2)}
    prompt = document["prompt_logprobs"]
    assert len(prompt) == document["usage"]["prompt_tokens"]
    assert prompt[0]["logprob"] is None and prompt[1]["logprob"] < 0
    plain = _document(daemon, *GREEDY)
    assert "logprobs" not in plain and "prompt_logprobs" not in plain


def test_processed_log_probabilities_are_of_what_was_drawn_from(daemon: Daemon) -> None:
    flags = ("--top-k", "1", "--top-logprobs", "0", "--max-new-tokens", "4", "--ignore-eos")
    drawn = _document(daemon, *flags, "--processed-logprobs")["logprobs"]
    assert [entry["logprob"] for entry in drawn] == [0.0] * 4
    assert all(entry["logprob"] < 0 for entry in _document(daemon, *flags)["logprobs"])


def test_people_see_log_probabilities_as_a_table_behind_the_answer(daemon: Daemon) -> None:
    flags = (*GREEDY, "--top-logprobs", "2", "--prompt-logprobs", "1")
    document = _document(daemon, *flags)
    done = specd("generate", "--address", daemon.address, *flags, PROMPT)
    assert (done.returncode, done.stdout) == (0, document["text"] + "\n")
    lines = done.stderr.splitlines()
    assert len(lines) == 2 + document["usage"]["prompt_tokens"] + 8
    heads = [place for place, line in enumerate(lines) if "alternatives" in line]
    assert [lines[place].split()[0] for place in heads] == ["prompt", "answer"]
    assert re.match(r"'The' +\d+ +- +-$", lines[1])
    for entry, line in zip(document["logprobs"], lines[heads[1] + 1 :], strict=True):
        numbers = re.search(r" (\d+) +(-?\d+\.\d{4}) +(\d+)  ", line)
        assert numbers is not None
        assert int(numbers[1]) == entry["token_id"] and int(numbers[3]) == entry["rank"]
        assert math.isclose(float(numbers[2]), entry["logprob"], abs_tol=5.1e-5)
        assert f"{entry['alternatives'][1]['logprob']:.4f}" in line


def test_the_command_of_the_page_on_clients_runs(daemon: Daemon) -> None:
    page = Path(__file__).parents[2] / "docs" / "clients.md"
    (command,) = re.findall(r"```sh\nspecd (.*)\n```", page.read_text())
    done = specd(*shlex.split(command), env={"SPECD_ADDRESS": daemon.address})
    assert json.loads(done.stdout) in ("port", "starboard")
    assert (done.returncode, done.stderr.split()[0]) == (0, "answer")


def test_chat_takes_the_flags_of_an_answer(daemon: Daemon) -> None:
    flags = ("--choice", "aye", "--logit-bias", "5=-3", "--json")
    done = specd("chat", "--address", daemon.address, *flags, stdin=b"Port?\n")
    assert (done.returncode, json.loads(done.stdout)["text"]) == (0, "aye")


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (("--logit-bias", "5=nan"), "sampling.logit_bias[5]"),
        (("--top-logprobs", "21"), "output.top_logprobs"),
        (("--regex", "("), "structure.regex"),
    ],
)
def test_what_the_daemon_refuses_is_a_sentence_with_the_field(
    daemon: Daemon, flags: tuple[str, ...], field: str
) -> None:
    done = specd("generate", "--address", daemon.address, *flags, PROMPT)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"specd: {field}: ")
