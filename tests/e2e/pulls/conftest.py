"""Two sources on loopback sockets, and a command line that knows them and a toy model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_hosts import FakeHub, FakeIndex, serving
from tests.support.puller import HUB_NAME, NUM_BYTES, NUM_PARTS, Puller
from tests.support.toy_wheels import split, toy_model


@pytest.fixture(scope="module")
def content() -> bytes:
    return random.Random(1).randbytes(NUM_BYTES)


@pytest.fixture
def index(content: bytes) -> Iterator[FakeIndex]:
    with serving(FakeIndex()) as host:
        host.wheels = split(content, NUM_PARTS)
        yield host


@pytest.fixture
def hub(content: bytes) -> Iterator[FakeHub]:
    with serving(FakeHub()) as host:
        host.files = {HUB_NAME: content}
        yield host


@pytest.fixture
def puller(tmp_path: Path, content: bytes, index: FakeIndex, hub: FakeHub) -> Puller:
    made = Puller(tmp_path, index.environment | hub.environment)
    made.know(toy_model(content, NUM_PARTS))
    return made
