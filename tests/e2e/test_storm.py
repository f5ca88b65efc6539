"""Two storms, one after the other, leave the daemon as they found it.

SPECD_STORM_SECONDS says how long each is; the full run is 120, with 2,000 calls in each.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from specd_client import Client

from tests.e2e.calls import answer, quiet, wait_for
from tests.e2e.storm import Storm
from tests.support.daemon import resident_bytes, running_daemon

SECONDS = float(os.environ.get("SPECD_STORM_SECONDS", "10"))
CALLS_PER_SECOND = 2000 / 120
MAX_GROWTH = 1.05


@pytest.mark.soak
@pytest.mark.asyncio
async def test_storms_leave_nothing_behind(toy: Path) -> None:
    flags = ("--max-rows", "4", "--max-waiting", "8")
    async with running_daemon(toy, *flags) as daemon:
        async with Client(daemon.address, retries=False) as client:
            before = await answer(client, temperature=0, max_new_tokens=40)
            tasks = (await client.server_info()).counters.tasks
            storm = Storm(daemon, client)
            resident = []
            for _ in range(2):
                await storm.blow(round(SECONDS * CALLS_PER_SECOND), SECONDS)
                await quiet(client)
                await wait_for(client, tasks=tasks)
                resident.append(resident_bytes(daemon.pid))
            after = await answer(client, temperature=0, max_new_tokens=40)
            assert after.token_ids == before.token_ids
        assert resident[1] <= MAX_GROWTH * resident[0]
        daemon.check_log()
    kinds = {end.split()[0] for end in storm.ends}
    assert len(kinds) == len(storm.ways), f"some kind of call never came: {storm.ends}"
    print(resident, dict(sorted(storm.ends.items())))  # noqa: T201  # shown by `pytest -s`
