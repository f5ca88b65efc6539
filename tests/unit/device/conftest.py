"""What every test of the device room runs under: one torch thread, as processes may compete."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.device.texts import torch_threads


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield
