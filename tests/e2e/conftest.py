"""Toy models on disk for all end-to-end tests, and the daemon that most of them share.

A start costs about two seconds, nearly all of them Python's imports. A shared daemon is a process
behind a plain fixture: no event loop and no scope outlives a test. Tests leave it as they found it,
which is checked at the end of every module, and its own end once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.toy_gguf import build_toy_model
from tests.support.daemon import Daemon, daemon_process


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the toy models."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def toy(models: Path) -> Path:
    """The standard toy: 512 tokens of vocabulary and of context."""
    path = models / "toy.gguf"
    build_toy_model(path)
    return path


@pytest.fixture(scope="session")
def odd_toy(models: Path) -> Path:
    """4-bit blocks, and a vocabulary that is a multiple of nothing."""
    path = models / "odd.gguf"
    build_toy_model(path, seed=5, vocab=1021, linear_type="Q4_1", embed_type="Q4_1", tied=True)
    return path


@pytest.fixture(scope="session")
def slow_toy(models: Path) -> Path:
    """Loads for seconds in torch: it has many layers to warm up, in many buckets."""
    path = models / "slow.gguf"
    build_toy_model(path, layers=24, ffn=1024, context_length=4096)
    return path


@pytest.fixture(scope="session")
def long_toy(models: Path) -> Path:
    """Its context takes longer to fill than any test lasts: about a minute."""
    path = models / "long-context.gguf"
    build_toy_model(path, context_length=65_536)
    return path


@pytest.fixture(scope="session")
def shared_daemon(toy: Path) -> Iterator[Daemon]:
    # In fp32 no two logits are equal, so that top-k 1 is greedy. Other tests have other weights.
    with daemon_process(toy, "--weights", "fp32") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def daemon(shared_daemon: Daemon) -> Iterator[Daemon]:
    """A daemon with the standard toy and, but for the weights, the defaults."""
    yield shared_daemon
    shared_daemon.wait_quiet()
    shared_daemon.check_log()
