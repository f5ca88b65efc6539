"""Hugging Face folders behind a real daemon: what is served, and what is refused at the start."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from specd_client import Client

from benchmarks.toy_gguf import toy_vocabulary
from tests.e2e.calls import PROMPTS, answer
from tests.support.daemon import Daemon, daemon_process, spawned
from tests.support.toy_folder import (
    edit_config,
    edit_header,
    twin_folder,
    write_tokenizer,
)

START_FAILED = 3


@pytest.fixture(scope="module")
def folder(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The standard toy as a folder in three shards."""
    path = tmp_path_factory.mktemp("folders") / "Toy-Folder"
    twin_folder(toy, path, toy_vocabulary(), shards=3)
    return path


@pytest.fixture(scope="module")
def folder_daemon(folder: Path) -> Iterator[Daemon]:
    with daemon_process(folder, "--weights", "fp32") as process:
        yield process


@pytest.mark.asyncio
async def test_a_folder_gives_the_tokens_of_the_gguf_file_with_the_same_weights(
    daemon: Daemon, folder_daemon: Daemon
) -> None:
    async with Client(daemon.address) as gguf, Client(folder_daemon.address) as folder:
        for prompt in PROMPTS:
            settings = {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True}
            wanted = await answer(gguf, prompt, **settings)
            found = await answer(folder, prompt, **settings)
            assert found.token_ids == wanted.token_ids, prompt
            assert found.text == wanted.text
            assert len(set(wanted.token_ids)) > 5


@pytest.mark.asyncio
async def test_a_folder_has_the_chat_template_and_the_ends_of_its_tokenizer(
    daemon: Daemon, folder_daemon: Daemon
) -> None:
    said = {"role": "user", "content": "Who rings the bell?"}
    told = []
    for address in (daemon.address, folder_daemon.address):
        async with Client(address) as client:
            prompt = await client.tokenize(messages=[said])
            told.append((prompt, list((await client.model()).eos_token_ids)))
    assert told[0] == told[1]
    assert all(told[0])


# Every other fault of a folder is refused by the same way, and tested beside the code.
@dataclass(frozen=True)
class Bad:
    """How a copy of the folder is spoilt, and what the refusal says."""

    spoil: Callable[[Path], object]
    words: str


def _first_shard(folder: Path) -> Path:
    return min(folder.glob("*.safetensors"))


def _truncate(folder: Path) -> None:
    shard = _first_shard(folder)
    shard.write_bytes(shard.read_bytes()[:-100])


def _store_in_eight_bits(folder: Path) -> None:
    def edit(header: dict[str, Any]) -> None:
        name = next(name for name in header if name.startswith("model."))
        start, end = header[name]["data_offsets"]
        header[name] |= {"dtype": "F8_E4M3", "shape": [end - start]}

    edit_header(_first_shard(folder), edit)


BAD = {
    "another family": Bad(
        lambda folder: edit_config(
            folder, lambda config: config.update(architectures=["GPTNeoXForCausalLM"])
        ),
        "the class 'GPTNeoXForCausalLM' is not supported",
    ),
    "truncated shard": Bad(_truncate, "model-00001-of-00003.safetensors is truncated or damaged"),
    "F8_E4M3": Bad(_store_in_eight_bits, "has the type F8_E4M3; specd reads F32, F16, BF16"),
    "wrong tokenizer": Bad(
        lambda folder: write_tokenizer(folder, toy_vocabulary(1021)),
        "the tokenizer has 1021 tokens and the model 512",
    ),
}


@pytest.fixture(scope="module")
def refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit status and log of a daemon for every bad folder."""
    root = tmp_path_factory.mktemp("bad")

    def start(name: str) -> tuple[int, str]:
        path = Path(shutil.copytree(folder, root / name.replace(" ", "-")))
        BAD[name].spoil(path)
        with spawned(path) as process:
            return process.wait_exit(), process.log

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(BAD, pool.map(start, BAD), strict=True))


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_ends_the_daemon_with_one_sentence(
    name: str, refused: dict[str, tuple[int, str]]
) -> None:
    status, log = refused[name]
    assert status == START_FAILED, log
    assert "Traceback" not in log
    (last,) = [line for line in log.splitlines() if line.startswith("specd: ")]
    assert BAD[name].words in last
