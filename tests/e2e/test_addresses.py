"""Where the daemon listens: TCP, sockets in the file system, and who else may be there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from specd_client import Client

from tests.e2e.calls import answer
from tests.support.daemon import spawned

START_FAILED = 3


@pytest.mark.asyncio
async def test_one_daemon_answers_on_a_port_and_a_socket_alike(toy: Path, tmp_path: Path) -> None:
    flags = ("--listen", "unix:s")
    with spawned(toy, *flags, cwd=tmp_path) as daemon:
        daemon.wait_ready()
        told = json.loads(daemon.ready_file.read_text())
        assert told["addresses"] == [daemon.address, f"unix:{tmp_path}/s"]
        answers = []
        for address in told["addresses"]:
            async with Client(address) as client:
                answers.append(await answer(client, seed=3, max_new_tokens=9))
        assert answers[0].token_ids == answers[1].token_ids
        daemon.terminate()
        assert daemon.wait_exit() == 0
        assert not (tmp_path / "s").exists()
        daemon.check_log()


def test_sockets_are_for_this_user_alone_and_the_admin_socket_lies_beside(
    toy: Path, tmp_path: Path
) -> None:
    with spawned(toy, listen=f"unix:{tmp_path}/s") as daemon:
        daemon.wait_ready()
        assert daemon.admin_address == f"unix:{tmp_path}/s.admin"
        for name in ("s", "s.admin"):
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.asyncio
async def test_a_socket_in_use_is_told_and_the_daemon_that_has_it_goes_on(
    toy: Path, tmp_path: Path
) -> None:
    address = f"unix:{tmp_path}/s"
    with spawned(toy, listen=address) as first:
        first.wait_ready()
        with spawned(toy, listen=address) as second:
            assert second.wait_exit() == START_FAILED
            assert f"cannot listen on {address}: the address is in use" in second.log
        async with Client(address) as client:
            assert (await answer(client, max_new_tokens=1)).usage.completion_tokens == 1


@pytest.mark.asyncio
async def test_a_socket_that_a_killed_daemon_left_behind_is_taken_over(
    toy: Path, tmp_path: Path
) -> None:
    address = f"unix:{tmp_path}/s"
    with spawned(toy, listen=address) as killed:
        killed.wait_ready()
        killed.process.kill()
        killed.wait_exit()
        assert (tmp_path / "s").exists()
    with spawned(toy, listen=address) as daemon:
        daemon.wait_ready()
        async with Client(address) as client:
            assert (await answer(client, max_new_tokens=1)).usage.completion_tokens == 1


@pytest.mark.asyncio
async def test_a_daemon_that_ends_leaves_the_socket_of_its_successor(
    toy: Path, tmp_path: Path
) -> None:
    address = f"unix:{tmp_path}/s"
    with spawned(toy, listen=address) as first:
        first.wait_ready()
        for name in ("s", "s.admin"):
            (tmp_path / name).unlink()
        with spawned(toy, listen=address) as second:
            second.wait_ready()
            first.terminate()
            assert first.wait_exit() == 0
            async with Client(address) as client:
                assert (await answer(client, max_new_tokens=1)).usage.completion_tokens == 1
            second.terminate()
            assert second.wait_exit() == 0
    assert os.listdir(tmp_path) == []


def test_when_one_address_cannot_be_had_none_is_kept(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    flags = ("--listen", f"unix:{tmp_path}/file")
    with spawned(toy, *flags, listen=f"unix:{tmp_path}/s") as daemon:
        assert daemon.wait_exit() == START_FAILED
        assert "not a socket" in daemon.log
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_an_admin_address_there_is_no_admin_socket(toy: Path, tmp_path: Path) -> None:
    with spawned(toy, "--admin-listen", "none", listen=f"unix:{tmp_path}/s") as daemon:
        daemon.wait_ready()
        assert daemon.admin_address is None
        assert [path.name for path in tmp_path.iterdir()] == ["s"]
