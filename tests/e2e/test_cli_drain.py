"""`specd drain` as an operator and as a script before a restart run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from specd_client import Client, NotReady

from tests.e2e.calls import PROMPT, wait_for
from tests.support.commands import specd
from tests.support.daemon import spawned


@pytest.mark.asyncio
async def test_drain_waits_for_what_runs_and_says_how_it_ended(long_toy: Path) -> None:
    with spawned(long_toy) as daemon:
        daemon.wait_ready()
        admin = ("--admin-address", daemon.admin_address)
        async with Client(daemon.address, retries=False) as client:
            stream = client.stream(PROMPT, ignore_eos=True)
            await wait_for(client, running=1)
            done = specd("drain", *admin, "--timeout", "0.1", "--json")
            assert (done.returncode, done.stderr) == (0, "")
            assert json.loads(done.stdout) == {"finished": 0, "aborted": 1}
            assert [event async for event in stream]
            with pytest.raises(NotReady, match="draining"):
                await client.generate(PROMPT)
        assert "0 ended by themselves, 0 were aborted" in specd("drain", *admin).stdout


def test_the_admin_address_follows_from_the_daemon_s(toy: Path, tmp_path: Path) -> None:
    with spawned(toy, env={"XDG_RUNTIME_DIR": str(tmp_path)}) as daemon:
        daemon.wait_ready()
        env = {"XDG_RUNTIME_DIR": str(tmp_path), "SPECD_ADDRESS": daemon.address}
        done = specd("drain", env=env)
        assert done.returncode == 0, done.stderr


def test_nobody_there_and_a_bad_timeout_are_status_one_and_a_sentence(toy: Path) -> None:
    with spawned(toy) as daemon:
        daemon.wait_ready()
        for flags in (
            ("--admin-address", "unix:/no/such/socket"),
            ("--admin-address", "nonsense"),
            ("--admin-address", daemon.admin_address, "--timeout", "-1"),
        ):
            done = specd("drain", *flags)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr.startswith("specd: ")
            assert len(done.stderr.splitlines()) == 1
