"""Structures where memory is short: they outlive preemption, and refused ones leave nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from specd_client import Client, WrongState

from tests.e2e.calls import PROMPT, answer
from tests.e2e.test_pressure import NUM_PAGES, PAGE_BYTES
from tests.support.daemon import Daemon, daemon_process

NUMBERS = json.dumps({
    "type": "array", "items": {"enum": [1, 22, 333, None]}, "minItems": 24, "maxItems": 30
})  # fmt: skip


@pytest.fixture(scope="module")
def tight_daemon(toy: Path) -> Iterator[Daemon]:
    """Eight pages for all, and the two that nobody gets: 256 positions."""
    memory = str((NUM_PAGES + 2) * PAGE_BYTES)
    with daemon_process(toy, "--kv-memory", memory, "--max-step-tokens", "64") as daemon:
        yield daemon


@pytest.mark.asyncio
async def test_structures_survive_preemption(tight_daemon: Daemon) -> None:
    async with Client(tight_daemon.address) as client:
        wish: dict[str, Any] = {"json_schema": NUMBERS, "temperature": 1.0}
        alone = [
            await answer(client, PROMPT, seed=seed, speculation=False, **wish) for seed in range(6)
        ]
        before = (await client.server_info()).counters.real_positions
        runs = await asyncio.gather(
            *(answer(client, PROMPT, seed=seed, **wish) for seed in range(6))
        )
        after = (await client.server_info()).counters.real_positions
        for run, plain in zip(runs, alone, strict=True):
            assert run.token_ids == plain.token_ids
            assert 24 <= len(json.loads(run.text)) <= 30
        totals = [run.speculation.total for run in runs]
        needed = sum(run.usage.prompt_tokens + run.usage.completion_tokens for run in runs)
        needed += sum(total.draft_tokens - total.accepted_draft_tokens for total in totals)
        assert after - before > needed, "somebody was preempted and computed again"


@pytest.mark.asyncio
async def test_what_is_refused_behind_its_structure_leaves_no_structure(
    tight_daemon: Daemon,
) -> None:
    """So much text fits twenty times."""
    choice = ["the harbour " * 8000]
    async with Client(tight_daemon.address) as client:
        for _ in range(25):
            with pytest.raises(WrongState) as refused:
                await answer(client, [65] * 32 * NUM_PAGES, choice=choice, max_new_tokens=1)
            assert refused.value.reason == "OUT_OF_PAGES"
