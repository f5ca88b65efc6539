"""Reading memory against the clock."""

from __future__ import annotations

import time

import pytest
import torch

from specd.device import bandwidth
from specd.device.bandwidth import read_bandwidth


@pytest.fixture(autouse=True)
def small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "_buffer_bytes", lambda: 4 * bandwidth.PIECE_BYTES)


def test_it_takes_as_long_as_it_may() -> None:
    start = time.perf_counter()
    read_bandwidth(0.2)
    assert time.perf_counter() - start >= 0.2


def test_it_is_what_memory_can_do() -> None:
    measured = read_bandwidth(0.05)
    assert 1e7 < measured.bytes_per_s < 1e13
    assert measured.num_threads in {1, torch.get_num_threads()}
    assert measured.buffer_bytes == 4 * bandwidth.PIECE_BYTES


def test_it_leaves_torch_its_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        read_bandwidth(0.01)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_buffer_smaller_than_a_piece_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "_buffer_bytes", lambda: 1 << 20)
    assert read_bandwidth(0.01).bytes_per_s > 0
