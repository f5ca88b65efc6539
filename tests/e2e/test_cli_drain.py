"""`specd drain` as an operator and as a script before a restart run it."""

from __future__ import annotations

import json
import re
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


def test_what_is_no_admin_address_is_status_one_and_a_sentence() -> None:
    done = specd("drain", "--admin-address", "nonsense")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("specd: ") and len(done.stderr.splitlines()) == 1


def test_an_admin_socket_that_was_guessed_wrong_tells_where_the_right_one_stands(
    toy: Path, tmp_path: Path
) -> None:
    with spawned(toy, env={"XDG_RUNTIME_DIR": str(tmp_path)}) as daemon:
        daemon.wait_ready()
        address = daemon.address.replace("127.0.0.1", "localhost")
        guessed = f"unix:{tmp_path}/specd/{address}.admin"
        done = specd(
            "drain", "--json", "--address", address, env={"XDG_RUNTIME_DIR": str(tmp_path)}
        )
        message = json.loads(done.stdout)["error"]
        assert (done.returncode, done.stderr) == (1, f"specd: {message}\n")
        assert message == (
            f"nobody answers at the admin address {guessed} (No such file or directory); "
            "the daemon's log and ready file tell the right one, for --admin-address"
        )
        told = re.search(r"admin calls on (\S+)", daemon.log)
        assert told is not None and told[1] == daemon.admin_address
        assert specd("drain", "--admin-address", told[1]).returncode == 0


@pytest.mark.parametrize("timeout", ["nan", "inf", "-1", "1e300", "soon"])
def test_a_timeout_that_cannot_be_waited_for_is_wrong_usage(timeout: str) -> None:
    for command in (("drain",), ("generate", "x"), ("chat",)):
        done = specd(*command, f"--timeout={timeout}")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"{timeout!r} is no number of seconds" in done.stderr.splitlines()[-1]
