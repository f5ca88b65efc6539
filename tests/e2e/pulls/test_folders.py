"""`specd models pull hf:OWNER/REPO` as a process: a whole folder of a hub, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.toy_gguf import build_toy_model
from tests.support.fake_hosts import FakeHub
from tests.support.puller import LIMIT_S, Puller
from tests.support.toy_folder import twin_folder

REPOSITORY = "toys/Toy-1.5"
NAME = f"hf:{REPOSITORY}"
OTHERS = {
    "README.md": b"# Toy",
    "LICENSE": b"none",
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"twice",
    "original/model.safetensors": b"elsewhere",
    "onnx/config.json": b"{}",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hub")
    vocabulary = build_toy_model(root / "toy.gguf")
    twin_folder(root / "toy.gguf", root / "toy", vocabulary, shards=3)
    return root / "toy"


@pytest.fixture(autouse=True)
def offered(hub: FakeHub, folder: Path) -> Iterator[dict[str, bytes]]:
    """What the hub has of the model; other files lie beside it."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    hub.files |= {f"{REPOSITORY}/{name}": content for name, content in (files | OTHERS).items()}
    yield files


def here(puller: Puller) -> dict[str, bytes]:
    folder = puller.cache / "hf" / REPOSITORY
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


def test_the_files_of_a_model_come_whole_and_no_others(
    puller: Puller, offered: dict[str, bytes]
) -> None:
    document = puller.pull(name=NAME)
    assert document["path"] == str(puller.cache / "hf" / REPOSITORY)
    assert document["bytes"] == sum(map(len, offered.values()))
    assert (document["source"], document["origin"]) == ("hub", f"the hub: {NAME}")
    assert here(puller) == offered


def test_a_pulled_folder_is_a_model_for_other_commands(puller: Puller) -> None:
    missing = puller.run("inspect", NAME)
    assert (missing.returncode, f"specd models pull {NAME}" in missing.stderr) == (1, True)
    puller.pull(name=NAME)
    done = puller.run("inspect", NAME, "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "Toy-1.5"
    listed = json.loads(puller.run("models", "list", "--json").stdout)["from_hub"]
    size = sum(map(len, here(puller).values()))
    path = str(puller.cache / "hf" / REPOSITORY)
    assert listed == [{"name": NAME, "bytes": size, "path": path}]


def test_what_is_here_is_not_fetched_again(puller: Puller, hub: FakeHub) -> None:
    puller.pull(name=NAME)
    hub.asked.clear()
    assert puller.pull(name=NAME)["source"] == "cache"
    assert hub.bodies("/storage/") == []
    shown = puller.run("models", "pull", NAME).stdout
    assert "was here already" in shown and "checksum of 7 files verified" in shown


def test_damaged_files_are_fetched_again_and_only_they(
    puller: Puller, hub: FakeHub, offered: dict[str, bytes]
) -> None:
    puller.pull(name=NAME)
    folder = puller.cache / "hf" / REPOSITORY
    for name in ("model-00002-of-00003.safetensors", "tokenizer.json"):
        content = bytearray(offered[name])
        content[-2] ^= 1
        (folder / name).write_bytes(content)
    hub.asked.clear()
    puller.pull(name=NAME)
    asked = {asked.path.rpartition("/")[2] for asked in hub.bodies("/storage/")}
    assert asked == {"model-00002-of-00003.safetensors", "tokenizer.json", "config.json"}
    assert here(puller) == offered


def test_a_killed_pull_is_no_model_yet_and_goes_on_where_it_was(
    puller: Puller, hub: FakeHub, offered: dict[str, bytes]
) -> None:
    hub.hold_path, hub.hold_after = "model-00002", 1 << 16
    with puller.started(name=NAME) as process:
        assert hub.held.wait(LIMIT_S)
        process.kill()
        process.wait()
    hub.release()
    assert "is not on this machine" in puller.run("inspect", NAME).stderr
    assert json.loads(puller.run("models", "list", "--json").stdout)["from_hub"] == []
    hub.asked.clear()
    puller.pull(name=NAME)
    assert hub.bodies("model-00001") == []
    assert here(puller) == offered


def test_a_cut_connection_is_taken_up_with_a_range(
    puller: Puller, hub: FakeHub, offered: dict[str, bytes]
) -> None:
    hub.cuts = [1 << 20, 100_000]  # the list of files comes whole
    puller.pull(name=NAME)
    assert [asked.start for asked in hub.bodies("model-00001")][-1] == 100_000
    assert here(puller) == offered


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model-00003-of-00003.safetensors", "has sha256"),
        ("tokenizer.json", "does not have the checksum that the hub tells"),
    ],
)
def test_a_file_with_another_checksum_is_no_model(
    name: str, words: str, puller: Puller, hub: FakeHub
) -> None:
    puller.pull(name=NAME)
    hub.claimed_sha256[f"{REPOSITORY}/{name}"] = "3" * 64
    hub.claimed_blob[f"{REPOSITORY}/{name}"] = "3" * 40
    message = puller.fail(name=NAME)
    assert words in message and name in message
    assert "config.json" not in here(puller) and name not in here(puller)
    assert "the next pull goes on from" in message


def test_what_a_newer_commit_no_longer_has_is_removed(
    puller: Puller, hub: FakeHub, offered: dict[str, bytes], folder: Path
) -> None:
    puller.pull(name=NAME)
    for name in offered:
        if name.startswith("model"):
            del hub.files[f"{REPOSITORY}/{name}"]
    one = (folder / "model-00001-of-00003.safetensors").read_bytes()
    hub.files[f"{REPOSITORY}/model.safetensors"] = one
    puller.pull(name=NAME)
    left = {name for name in here(puller) if name.startswith("model")}
    assert left == {"model.safetensors"}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["config.json", "pytorch_model.bin"], "pickled weights alone"),
        (["config.json", "toy-Q4_0.gguf"], f"{NAME}/toy-Q4_0.gguf"),
        (["model.safetensors"], "is no model folder: it lacks config.json"),
        (["config.json", "model.safetensors.index.json"], "is no model folder"),
        ([], "the hub has no toys/Toy-1.5"),
    ],
)
def test_a_repository_that_is_no_model_folder_is_one_sentence(
    files: list[str], words: str, puller: Puller, hub: FakeHub
) -> None:
    hub.files = {f"{REPOSITORY}/{name}": b"{}" for name in files}
    assert words in puller.fail(name=NAME)


def test_a_hub_that_is_switched_off_is_said(puller: Puller, hub: FakeHub) -> None:
    puller.variables |= {"HF_HUB_OFFLINE": "1"}
    assert "HF_HUB_OFFLINE" in puller.fail(name=NAME)
    assert hub.asked == []
