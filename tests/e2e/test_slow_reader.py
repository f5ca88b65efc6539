"""Clients that open a stream and take nothing of it, for a while or for ever."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from specd_client import Client
from specd_client.v1 import generation_pb2 as pb

from benchmarks.toy_gguf import build_toy_model
from tests.e2e.calls import answer, quiet, wait_for
from tests.e2e.drafters_under_test import JOURNAL, spec
from tests.support.daemon import Daemon, daemon_process, resident_bytes
from tests.support.deaf_reader import DeafReader

METHOD = "/specd.v1.GenerationService/StreamGenerate"
NUM_DEAF = 4
# grpc takes 64 KiB from a handler before a write has to wait; a delta is at least 20 bytes.
NUM_TOKENS = 3000
# K and V of the toy, 512 bytes, and what an unread token costs: about as much again.
MAX_BYTES_PER_TOKEN = 2048
# What a daemon's memory wanders by without any reason that concerns us.
SLACK = 8 << 20
STEPS = spec("steps")


@dataclass(frozen=True)
class Watched:
    """A daemon, and the file in which it writes who took part in each step."""

    daemon: Daemon
    journal: Path

    def steps(self) -> list[list[str]]:
        return [json.loads(line) for line in self.journal.read_text().splitlines()]


@pytest.fixture(scope="module")
def watched(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    path = models / "deaf.gguf"
    build_toy_model(path, context_length=4096)
    journal = tmp_path_factory.mktemp("deaf") / "journal"
    env, here = {JOURNAL: str(journal)}, Path(__file__).parent
    with daemon_process(path, "--drafter", STEPS, env=env, cwd=here) as daemon:
        yield Watched(daemon, journal)


def _request(seed: int) -> pb.StreamGenerateRequest:
    return pb.StreamGenerateRequest(
        input={"text": "x"},
        sampling={"seed": seed},
        stop={"ignore_eos": True, "max_new_tokens": NUM_TOKENS},
        output={"token_ids": True, "speculation_steps": True},
        speculation={"drafters": [STEPS]},
    )


def _check_took_part_in_every_step(steps: Sequence[Sequence[str]], request_id: str) -> int:
    """Between its first and its last step; returns their number."""
    places = [place for place, ids in enumerate(steps) if request_id in ids]
    assert places == list(range(places[0], places[-1] + 1))
    return len(places)


def _check_caught_up(messages: Sequence[pb.StreamGenerateResponse]) -> list[int]:
    """It got every token, what came while it was deaf in few deltas; returns the ids."""
    kinds = [message.WhichOneof("event") for message in messages]
    assert (kinds[0], kinds[-2:]) == ("started", ["sequence_finished", "finished"])
    deltas = [message.delta for message in messages[1:-2]]
    assert sum(len(delta.steps) for delta in deltas) == NUM_TOKENS
    assert deltas[-1].completion_tokens == NUM_TOKENS
    assert len(deltas) < 0.9 * NUM_TOKENS
    assert max(len(delta.token_ids) for delta in deltas) > 100
    return [token for delta in deltas for token in delta.token_ids]


@pytest.mark.asyncio
async def test_readers_that_take_nothing_cost_bounded_memory_and_no_neighbour_a_step(
    watched: Watched,
) -> None:
    address, pid = watched.daemon.address, watched.daemon.pid
    options: dict[str, Any] = {"max_new_tokens": 100, "ignore_eos": True, "seed": 1}
    async with Client(address) as client:
        alone = await answer(client, request_id="alone", **options)
        num_steps = _check_took_part_in_every_step(watched.steps(), "alone")
        first = await answer(client, "x", max_new_tokens=100, ignore_eos=True, seed=0)
        before = resident_bytes(pid)
        with ExitStack() as stack:
            raws = [_request(seed).SerializeToString() for seed in range(NUM_DEAF)]
            readers = [stack.enter_context(DeafReader(address, METHOD, raw)) for raw in raws]
            await wait_for(client, running=NUM_DEAF)
            beside: list[str] = []
            while (await client.server_info()).counters.running == NUM_DEAF:
                name = f"beside-{len(beside)}"
                run = await answer(client, request_id=name, **options)
                assert run.token_ids == alone.token_ids
                beside.append(name)
            await wait_for(client, running=0)  # all tokens made, and not one read
            grown = resident_bytes(pid) - before
            parts = await asyncio.to_thread(readers[0].listen)
        await quiet(client)
    steps = watched.steps()
    assert len(beside) > 3
    for name in beside:
        assert _check_took_part_in_every_step(steps, name) == num_steps
    assert grown < SLACK + NUM_DEAF * NUM_TOKENS * MAX_BYTES_PER_TOKEN
    ids = _check_caught_up([pb.StreamGenerateResponse.FromString(part) for part in parts])
    assert tuple(ids[:100]) == first.token_ids
