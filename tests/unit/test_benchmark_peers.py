"""Peers of the benchmarks: what they answer, and how it is told that they cannot take part."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.contract import Drafted, PeerAbsent, PeerFailed
from benchmarks.peers.llama_server import LlamaServer, llama_server
from benchmarks.peers.worker import worker
from tests.support import fake_llama_server


@pytest.fixture(scope="module")
def fake_binary(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fake_llama_server.program(tmp_path_factory.mktemp("fake"))


def serving(binary: str, *flags: str) -> AbstractContextManager[LlamaServer]:
    sizes = {"threads": 1, "streams": 2, "context": 64}
    return llama_server(binary, Path("model.gguf"), **sizes, flags=flags)


def test_llama_server_gives_every_token_once_with_its_drafts(fake_binary: str) -> None:
    with serving(fake_binary) as peer:
        one, other = peer.run([[5, 6], [70]], 8)
        assert peer.version == "llama-server 7 (fake)"
    assert one.token_ids == tuple(range(7, 15))
    assert other.token_ids == tuple(range(71, 79))
    assert [count for _, count in one.timing.arrivals] == [2, 2, 2, 2]
    assert one.drafted == Drafted(
        steps=4, draft_tokens=8, accepted_draft_tokens=4, pad_positions=None
    )


@pytest.mark.parametrize(
    ("misbehave", "words"),
    [
        ("short", "7 tokens came instead of 8"),
        ("status", "status 400"),
        ("event", "out of room"),
        ("garbage", "JSONDecodeError"),
        ("hang-up", "2 tokens came instead of 8"),
    ],
)
def test_llama_server_that_answers_something_else_has_failed(
    fake_binary: str, misbehave: str, words: str
) -> None:
    with serving(fake_binary, "--misbehave", misbehave) as peer:
        with pytest.raises(PeerFailed, match=words):
            peer.run([[5, 6]], 8)


def test_llama_server_that_does_not_start_is_absent_with_its_own_words(fake_binary: str) -> None:
    with pytest.raises(PeerAbsent, match="status 4: error: no such model"):
        with serving(fake_binary, "--misbehave", "start"):
            pass
    with pytest.raises(PeerAbsent, match="/no/server: No such file"):
        with serving("/no/server"):
            pass


def test_a_worker_without_its_library_or_interpreter_is_absent() -> None:
    sizes = ("--model", "x", "--threads", "1", "--context", "8")
    with pytest.raises(PeerAbsent, match="No module named 'llama_cpp'"):
        with worker(sys.executable, "benchmarks.peers.llama_python", *sizes):
            pass
    with pytest.raises(PeerAbsent, match="/no/python: No such file"):
        with worker("/no/python", "benchmarks.peers.llama_python"):
            pass


@contextmanager
def child(tmp_path: Path, body: str) -> Iterator[Any]:
    """A worker whose module is `body`, which defines `load`."""
    module = tmp_path / "child_of_a_test.py"
    module.write_text(f"from benchmarks.peers import talk\n{body}\ntalk.serve(load)\n")
    launcher = tmp_path / "python"
    paths = f'PYTHONPATH="$PYTHONPATH:{tmp_path}"'
    launcher.write_text(f'#!/bin/sh\n{paths} exec {sys.executable} "$@"\n')
    launcher.chmod(0o755)
    with worker(str(launcher), "child_of_a_test") as peer:
        yield peer


def test_a_worker_tells_what_went_wrong_and_goes_on(tmp_path: Path) -> None:
    body = (
        "def half(of):\n    print('noise')\n    return 1 / of\n"
        "def load():\n    return 'child 1', {'half': half}"
    )
    with child(tmp_path, body) as peer:
        assert peer.version == "child 1"
        with pytest.raises(PeerFailed, match="ZeroDivisionError"):
            peer.ask("half", of=0)
        assert peer.ask("half", of=2) == 0.5


def test_a_worker_that_dies_has_failed_with_its_last_words(tmp_path: Path) -> None:
    body = (
        "import os, sys\n"
        "def die():\n    sys.stderr.write('no more')\n    sys.stderr.flush()\n    os._exit(9)\n"
        "def load():\n    return 'child 1', {'die': die}"
    )
    with child(tmp_path, body) as peer:
        with pytest.raises(PeerFailed, match="status 9: no more"):
            peer.ask("die")
