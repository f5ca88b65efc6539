"""Model files that other servers have stumbled over: first tokens, ends, and unusable parts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from specd_client import Client, FinishReason
from specd_client.v1 import model_pb2 as pb

from benchmarks.toy_gguf import END_OF_TEXT, IM_START, build_toy_model, toy_vocabulary
from tests.e2e.calls import answer, stubs, tokenized
from tests.support.daemon import Daemon, daemon_process, spawned
from tests.support.scripted_model import Piece, Script, build_scripted_model

START_FAILED = 3
BOS_TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
BOS = toy_vocabulary().id_of(IM_START)

# By the metadata key that names the last piece as an end; a marker's own text needs no key.
PREFIX = "tokenizer.ggml."
ENDS: dict[str, list[Piece]] = {
    PREFIX + "eot_token_id": [b"turn", "<|end_of_my_turn|>"],
    PREFIX + "eom_token_id": [b"message", b"!!"],
    "<|eot_id|>": [b"llama", "<|eot_id|>"],
    "<|end|>": [b"phi", "<|end|>"],
    "<end_of_turn>": [b"gemma", "<end_of_turn>"],
    "eos_token_id": [b"own"],
}


@dataclass(frozen=True)
class Ends:
    """A daemon whose model ends in many ways."""

    daemon: Daemon
    scripts: dict[str, Script]


@pytest.fixture(scope="module")
def ends(models: Path) -> Iterator[Ends]:
    path = models / "ends.gguf"
    keys = {name: place for place, name in enumerate(ENDS) if name.startswith(PREFIX)}
    scripts = build_scripted_model(path, list(ENDS.values()), ends=keys)
    with daemon_process(path) as daemon:
        yield Ends(daemon, dict(zip(ENDS, scripts, strict=True)))


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.asyncio
async def test_a_generation_ends_on_every_end_that_the_file_has(ends: Ends, name: str) -> None:
    script, pieces = ends.scripts[name], ENDS[name]
    # Where a key or a marker names the last piece, the answer never gets to <|im_end|>.
    wanted = script.answer if name == "eos_token_id" else script.answer[:-1]
    async with Client(ends.daemon.address) as client:
        run = await answer(client, [script.start], temperature=0)
        further = await answer(client, [script.start], temperature=0, ignore_eos=True,
                               max_new_tokens=len(script.answer))  # fmt: skip
    assert run.token_ids == wanted
    assert (run.finish_reason, run.matched_token_id) == (FinishReason.EOS_TOKEN, wanted[-1])
    assert isinstance(pieces[0], bytes)
    assert run.text == pieces[0].decode()
    assert further.token_ids == script.answer


@pytest.mark.asyncio
async def test_all_ends_of_the_file_are_told(ends: Ends) -> None:
    async with stubs(ends.daemon.address) as calls:
        model = (await calls.model.GetModel(pb.GetModelRequest())).model
    expected = {script.answer[-2] for script in ends.scripts.values()}
    expected -= {ends.scripts["eos_token_id"].answer[-2]}
    expected |= {ends.scripts["eos_token_id"].answer[-1], toy_vocabulary().id_of(END_OF_TEXT)}
    assert set(model.eos_token_ids) == expected


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "adds-bos"])
def bos_daemon(request: pytest.FixtureRequest, models: Path) -> Iterator[tuple[Daemon, bool]]:
    path = models / f"bos-{request.param}.gguf"
    build_toy_model(path, add_bos=request.param, chat_template=BOS_TEMPLATE)
    with daemon_process(path) as daemon:
        yield daemon, request.param


@pytest.mark.asyncio
async def test_a_first_token_is_added_once_where_the_file_asks_and_never_taken_away(
    bos_daemon: tuple[Daemon, bool],
) -> None:
    daemon, adds = bos_daemon
    added = [BOS] if adds else []
    async with Client(daemon.address) as client, stubs(daemon.address) as calls:

        async def ids_of(**prompt: object) -> list[int]:
            return list((await calls.model.Tokenize(pb.TokenizeRequest(input=prompt))).token_ids)

        plain = await ids_of(text="hello", add_special_tokens=False)
        assert BOS not in plain
        assert await tokenized(client, "hello") == [*added, *plain]
        # What the caller writes stays, also where it is what the file adds.
        written = f"{IM_START}hello"
        assert await ids_of(text=written, add_special_tokens=False) == [BOS, *plain]
        assert await tokenized(client, written) == [*added, BOS, *plain]
        assert await ids_of(tokens={"ids": [BOS, BOS]}) == [BOS, BOS]
        # A template writes its own.
        messages = [{"role": "user", "content": "hello"}]
        assert await ids_of(chat={"messages": messages}) == [BOS, *plain]


def _outcome(path: Path) -> tuple[int, str]:
    with spawned(path) as daemon:
        return daemon.wait_exit(), daemon.log


@pytest.fixture(scope="module")
def unusable(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """By name: exit status and output of a daemon that was given such a file."""
    folder = tmp_path_factory.mktemp("unusable")
    sinks = {"blk.0.attn_sinks.weight": np.ones(4, np.float32)}
    build_toy_model(folder / "family.gguf", architecture="mamba")
    build_toy_model(folder / "sinks.gguf", extra_tensors=sinks)
    whole = (folder / "sinks.gguf").read_bytes()
    (folder / "half.gguf").write_bytes(whole[: len(whole) // 2])
    with ThreadPoolExecutor(2) as pool:
        outcomes = pool.map(_outcome, sorted(folder.iterdir()))
    return dict(zip(("family", "half", "sinks"), outcomes, strict=True))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("family", ("architecture 'mamba' is not supported", "llama")),
        ("half", ("truncated",)),
        ("sinks", ("blk.0.attn_sinks.weight", "does not use")),
    ],
)
def test_a_file_that_cannot_be_served_ends_the_daemon_with_a_sentence(
    unusable: dict[str, tuple[int, str]], name: str, words: tuple[str, ...]
) -> None:
    status, log = unusable[name]
    assert status == START_FAILED, log
    last = log.splitlines()[-1]
    assert last.startswith("specd: ")
    assert "Traceback" not in log
    for word in words:
        assert word in last
