"""The command line against a running daemon: what goes to stdout, and exit statuses."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from specd import __version__
from tests.e2e.calls import PROMPT
from tests.support.commands import SPECD, specd
from tests.support.daemon import Daemon, environment

GREEDY = ("--temperature", "0", "--ignore-eos")


def _generate(
    daemon: Daemon, *arguments: str, text: str = PROMPT
) -> subprocess.CompletedProcess[str]:
    return specd("generate", "--address", daemon.address, *arguments, text)


def _document(daemon: Daemon, *arguments: str, text: str = PROMPT) -> dict[str, Any]:
    done = _generate(daemon, "--json", *arguments, text=text)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def test_generate_prints_the_answer(daemon: Daemon) -> None:
    done = _generate(daemon, *GREEDY, "--max-new-tokens", "12")
    document = _document(daemon, *GREEDY, "--max-new-tokens", "12")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == document["text"] + "\n"
    assert document["text"]


def test_generate_streams_as_tokens_come(daemon: Daemon) -> None:
    command = [str(SPECD), "generate", "--address", daemon.address, "--ignore-eos", PROMPT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.read(1), "something before the end"
        assert process.poll() is None
        process.kill()


def test_json_ends_with_one_document_of_the_whole_stream(daemon: Daemon) -> None:
    document = _document(daemon, *GREEDY, "--max-new-tokens", "20", "--seed", "7")
    assert len(document["token_ids"]) == document["usage"]["completion_tokens"] == 20
    assert document["finish_reason"] == "MAX_TOKENS"
    assert (document["seed"], document["model"]) == (
        7,
        _document(daemon, "--max-new-tokens", "1")["model"],
    )
    total = document["speculation"]["total"]
    assert total["verify_steps"] + total["accepted_draft_tokens"] in {20, 21}


def test_flags_reach_the_request(daemon: Daemon) -> None:
    plain = _document(daemon, *GREEDY, "--max-new-tokens", "20", "--no-speculation")
    assert plain["speculation"]["total"]["draft_tokens"] == 0
    named = _document(daemon, *GREEDY, "--max-new-tokens", "20", "--drafter", "ngram")
    assert named["token_ids"] == plain["token_ids"]
    stop = plain["text"][8:11]
    stopped = _document(daemon, *GREEDY, "--max-new-tokens", "20", "--stop", stop)
    assert stopped["finish_reason"] == "STOP_STRING"
    assert stopped["text"] == plain["text"][: plain["text"].find(stop)]
    top = ("--top-k", "1", "--top-p", "0.5", "--min-p", "0.1", "--max-draft-tokens", "2")
    sampled = _document(
        daemon, "--temperature", "2", "--ignore-eos", *top, "--max-new-tokens", "20"
    )
    assert sampled["token_ids"] == plain["token_ids"]


def test_chat_and_system_messages_go_through_the_template(daemon: Daemon) -> None:
    chat = _document(daemon, *GREEDY, "--max-new-tokens", "3", "--chat", text="Hi")
    system = ("--chat", "--system", "Be brief.")
    longer = _document(daemon, *GREEDY, "--max-new-tokens", "3", *system, text="Hi")
    plain = _document(daemon, *GREEDY, "--max-new-tokens", "3", text="Hi")
    counts = [found["usage"]["prompt_tokens"] for found in (plain, chat, longer)]
    assert counts == sorted(set(counts))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--temperature", "-1"), ("sampling.temperature", "at least 0")),
        (("--max-new-tokens", "0"), ("stop.max_new_tokens",)),
        (("--drafter", "eagle"), ("eagle", "ngram")),
        (("--timeout", "0.001", "--ignore-eos"), ("DEADLINE_",)),
    ],
)
def test_a_refused_call_is_status_one_and_a_sentence(
    daemon: Daemon, flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = _generate(daemon, "--json", *flags)
    assert done.returncode == 1
    assert done.stderr.startswith("specd: ") and "Traceback" not in done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    for word in words:
        assert word in done.stderr and word in document["error"]


def test_an_output_that_cannot_show_every_character_shows_the_others(daemon: Daemon) -> None:
    arguments = ("generate", "--address", daemon.address, *GREEDY, "--max-new-tokens", "40", PROMPT)
    full, ascii_ = specd(*arguments), specd(*arguments, env={"PYTHONIOENCODING": "ascii"})
    assert not full.stdout.isascii()
    assert (ascii_.returncode, ascii_.stderr) == (0, "")
    assert ascii_.stdout == full.stdout.encode("ascii", "replace").decode()


def test_an_interrupted_generate_is_status_130_and_no_traceback(daemon: Daemon) -> None:
    command = [str(SPECD), "generate", "--address", daemon.address, "--ignore-eos", "x"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, env=environment()) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, b"specd: interrupted\n")


def test_a_reader_that_has_enough_is_no_traceback(daemon: Daemon) -> None:
    script = f"'{SPECD}' generate --address {daemon.address} --ignore-eos 'x' | head -c 1"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, env=environment(), timeout=60, check=False
    )
    assert done.stderr == b""


def test_models_list_is_one_json_document_that_tells_what_is_here(tmp_path: Path) -> None:
    done = specd("models", "list", "--json", env={"SPECD_CACHE": str(tmp_path)})
    document = json.loads(done.stdout)
    assert (done.returncode, document["cache"]) == (0, str(tmp_path))
    models = {model["name"]: model for model in document["models"]}
    assert models["smollm2-135m"]["default"]
    assert {model["path"] for model in models.values()} == {None}
    assert all(len(model["sha256"]) == 64 for model in models.values())


def test_models_list_is_a_table_for_people(tmp_path: Path) -> None:
    done = specd("models", "list", env={"SPECD_CACHE": str(tmp_path)})
    assert done.returncode == 0
    assert "smollm2-135m (default)" in done.stdout and "specd models pull" in done.stdout


def test_pulling_an_unknown_model_is_status_one_and_a_sentence(tmp_path: Path) -> None:
    done = specd("models", "pull", "gpt-5", "--json", env={"SPECD_CACHE": str(tmp_path)})
    assert done.returncode == 1
    assert "gpt-5" in done.stderr and "Traceback" not in done.stderr
    assert "gpt-5" in json.loads(done.stdout)["error"]


def test_version() -> None:
    done = specd("--version")
    assert (done.returncode, done.stdout) == (0, f"specd {__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("generate",),
        ("generate", "--seed", "-1", "x"),
        ("generate", "--seed", str(2**64), "x"),
        ("generate", "--top-k", str(2**32), "x"),
        ("generate", "not \udcff UTF-8"),
        ("generate", "--system", "Be brief.", "x"),
        ("generate", "--processed-logprobs", "x"),
        ("chat", "--logit-bias", "5=1", "--logit-bias", "5=2"),
        ("models",),
        ("serve", "now"),
    ],
)
def test_wrong_usage_is_status_two(arguments: tuple[str, ...]) -> None:
    done = specd(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "specd" in done.stderr and "Traceback" not in done.stderr
