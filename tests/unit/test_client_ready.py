"""Waiting for a server, in both forms: for one that starts, restarts, comes late or never."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from specd_client import Client, DeadlineExceeded, Unsupported, sync

from tests.support.scripted_server import (
    NOT_SERVING,
    SERVING,
    Refusal,
    Scripted,
    asked,
    both_forms,
    listening,
    play,
)

PATIENCE_S = 30.0
CLIENTS: list[Callable[[str], Any]] = [Client, sync.Client]
both_clients = pytest.mark.parametrize("make", CLIENTS, ids=["async", "sync"])


@both_forms
@pytest.mark.asyncio
async def test_waiting_ends_when_the_server_serves(form: Callable[..., Any]) -> None:
    async with form(play()) as (client, scripted):
        scripted.health.put_nowait(NOT_SERVING)
        waiting = asyncio.create_task(asked(client, lambda c: c.wait_ready(PATIENCE_S)))
        await asyncio.wait_for(scripted.health.join(), PATIENCE_S)
        assert not waiting.done()
        scripted.health.put_nowait(SERVING)
        await waiting
    assert scripted.request == b"\x0a\x1aspecd.v1.GenerationService"


@both_forms
@pytest.mark.asyncio
async def test_a_server_that_never_serves_is_told_with_its_last_state(
    form: Callable[..., Any],
) -> None:
    async with form(play()) as (client, scripted):
        scripted.health.put_nowait(NOT_SERVING)
        with pytest.raises(DeadlineExceeded, match="not ready within 0.2 s: NOT_SERVING"):
            await asked(client, lambda c: c.wait_ready(0.2))


@both_clients
@pytest.mark.asyncio
async def test_an_address_where_nobody_answers_is_told_as_such(make: Callable[[str], Any]) -> None:
    with pytest.raises(DeadlineExceeded, match="nobody answers"):
        await _wait(make("127.0.0.1:1"), 0.2)


@both_clients
@pytest.mark.asyncio
async def test_a_server_may_come_later_than_its_client(
    make: Callable[[str], Any], tmp_path: Path
) -> None:
    address = f"unix:{tmp_path}/specd.sock"
    with pytest.raises(DeadlineExceeded):
        await _wait(make(address), 0.1)
    waiting = asyncio.create_task(_wait(make(address), PATIENCE_S))
    scripted = Scripted(play())
    scripted.health.put_nowait(SERVING)
    async with listening(scripted, address):
        await waiting


@both_forms
@pytest.mark.asyncio
async def test_a_watch_that_breaks_is_begun_again(form: Callable[..., Any]) -> None:
    async with form(play()) as (client, scripted):
        scripted.refusals = [Refusal(grpc.StatusCode.UNAVAILABLE)] * 2
        scripted.health.put_nowait(SERVING)
        await asked(client, lambda c: c.wait_ready(PATIENCE_S))
    assert len(scripted.arrivals_s) == 3


@both_clients
@pytest.mark.asyncio
async def test_a_server_without_health_checks_is_no_matter_of_time(
    make: Callable[[str], Any],
) -> None:
    async with listening(Scripted(play()), with_health=False) as address:
        with pytest.raises(Unsupported):
            await _wait(make(address), PATIENCE_S)


async def _wait(client: Any, timeout_s: float) -> None:
    if isinstance(client, sync.Client):
        with client:
            await asyncio.to_thread(client.wait_ready, timeout_s)
    else:
        async with client:
            await client.wait_ready(timeout_s)
