"""The doctor's whole check: what it refuses, how it repeats, and what its report holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.toy_gguf import build_toy_model
from specd.device.assembly import DeviceSettings
from specd.doctor import checkup
from specd.doctor.answers import Case
from specd.doctor.checkup import KV_MEMORY, MAX_ROWS, Course, Report, check_up
from specd.errors import StartFailed

pytestmark = pytest.mark.asyncio
TEXT = "Once upon a time there was a lighthouse, and nobody kept it. " * 12


async def checked(
    path: Path,
    course: Course | None = None,
    clock: Callable[[], float] = time.monotonic,
    **changes: Any,
) -> Report:
    values: dict[str, Any] = {
        "model_path": path,
        "weights": "fp32",
        "invariance": "strict",
        "kernels": "auto",
        "kv_memory": KV_MEMORY,
        "max_rows": MAX_ROWS,
        "max_positions": 256,
        "num_threads": 1,
    }
    settings = DeviceSettings(**values | changes)
    return await check_up(settings, TEXT, {}, course or Course(), lambda doing: None, clock)


async def test_a_context_that_is_too_short_is_refused_in_a_sentence(tmp_path: Path) -> None:
    build_toy_model(tmp_path / "short.gguf", layers=1, context_length=128)
    with pytest.raises(StartFailed, match="a context of 128 positions is too short"):
        await checked(tmp_path / "short.gguf")


async def test_the_shortest_context_that_is_taken_is_long_enough(tmp_path: Path) -> None:
    build_toy_model(tmp_path / "short.gguf", layers=1, context_length=192)
    report = await checked(tmp_path / "short.gguf", weights="bf16")
    assert (report.rounds, report.differences) == (1, 0)
    assert {finding.part for finding in report.findings} == {"operations", "logits", "tokens"}
    assert all(finding.compared for finding in report.findings)


async def test_a_check_of_some_minutes_repeats_with_other_choices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_toy_model(tmp_path / "toy.gguf", layers=1)
    ticks = iter([0.0, 30.0, 61.0, 61.0])  # the start, the end of each round, the report
    seen: list[Case] = []
    right = checkup._cases

    def cases(*arguments: Any) -> list[Case]:
        found = right(*arguments)
        seen.extend(found)
        return found

    monkeypatch.setattr(checkup, "_cases", cases)
    report = await checked(tmp_path / "toy.gguf", Course(minutes=1), lambda: next(ticks))
    assert (report.rounds, report.differences) == (2, 0)
    assert len({case.prompt for case in seen}) > len(seen) / 2, "rounds repeat their prompts"
    assert len({case.sampling.seed for case in seen}) == report.rounds
    assert [
        finding.compared
        for finding in report.findings
        if "alone" not in finding.name and finding.part == "tokens"
    ] == ([24] * 8)
