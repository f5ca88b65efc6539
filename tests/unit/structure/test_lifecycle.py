"""However a structured request ends, its structures are closed and nobody finds them any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from specd.engine.events import FinishReason
from specd.engine.generation import Generation, generation_of
from specd.engine.params import (
    GenerationParams,
    OutputParams,
    SamplingParams,
    SpeculationParams,
    StopParams,
    StructureParams,
)
from specd.engine.step_types import PaddedBatch
from specd.errors import QueueFull, StructureFailed
from specd.structure.drafter import NAME, GrammarDrafter
from specd.structure.workshop import Workshop
from tests.support.drafters import PATIENCE_S
from tests.support.requests import VOCAB_SIZE, read_all, toy_tokenizer
from tests.unit.engine.loop_support import Room, engine_room
from tests.unit.structure.support import TOO_COMPLEX, structure

LONG = structure("regex", "[a-c]{400}")


@dataclass
class Shop:
    """An engine, and where its structures are made."""

    room: Room
    workshop: Workshop
    drafter: GrammarDrafter

    async def request(self, name: str, params: StructureParams, *, count: int = 1) -> Generation:
        """A generation that nobody has submitted."""
        return generation_of(
            name,
            GenerationParams(
                SamplingParams(seed=3),
                StopParams(),
                OutputParams(),
                SpeculationParams((NAME,), 4),
                params,
                count,
            ),
            [1, 2, 3],
            toy_tokenizer(),
            context_left=1000,
            arrived_s=0.0,
            structures=await self.workshop.make(params, count),
        )

    async def running(self) -> None:
        """Wait until a step is under way."""
        under_way = asyncio.Event()

        async def during(batch: PaddedBatch) -> None:
            under_way.set()

        self.room.device.during = during
        await asyncio.wait_for(under_way.wait(), PATIENCE_S)

    async def check_closed(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.room.engine.wait_idle()
        assert self.drafter.live == {}
        assert self.workshop.live_bytes == 0


@asynccontextmanager
async def shop(**options: int) -> AsyncIterator[Shop]:
    drafter = GrammarDrafter()
    workshop = Workshop(drafter)
    await workshop.open(toy_tokenizer(), VOCAB_SIZE)
    try:
        async with engine_room({NAME: drafter}, **options) as room:
            yield Shop(room, workshop, drafter)
    finally:
        workshop.close()


@pytest.mark.asyncio
async def test_they_are_closed_when_all_sequences_are_complete() -> None:
    async with shop() as here:
        generation = await here.request("r", structure("regex", "[a-c]{3}"), count=2)
        here.room.engine.submit(generation)
        told = await read_all(generation.mailbox)
        assert {end.reason for end in told.ends} == {FinishReason.EOS_TOKEN}
        await here.check_closed()


@pytest.mark.parametrize("end", ["cancel", "abort"])
@pytest.mark.asyncio
async def test_they_are_closed_when_a_reader_leaves_or_aborts(end: str) -> None:
    """One runs, with two sequences, and one still waits."""
    async with shop(max_rows=2) as here:
        generations = [await here.request("a", LONG, count=2), await here.request("b", LONG)]
        for generation in generations:
            here.room.engine.submit(generation)
        await here.running()
        assert len(here.drafter.live) == 2
        for generation in generations:
            if end == "cancel":
                here.room.engine.cancel(generation)
            else:
                assert here.room.engine.abort(generation.request_id)
        await here.check_closed()


@pytest.mark.asyncio
async def test_they_are_closed_when_a_structure_fails() -> None:
    async with shop() as here:
        generation = await here.request("r", structure("lark", TOO_COMPLEX.replace('"a"', '"b"')))
        here.room.engine.submit(generation)
        told = await read_all(generation.mailbox)
        assert isinstance(told.error, StructureFailed)
        assert "too many expressions" in str(told.error)
        await here.check_closed()


@pytest.mark.asyncio
async def test_a_request_that_finds_no_room_keeps_nothing() -> None:
    async with shop(max_rows=1, max_waiting=0) as here:
        first, second = await here.request("a", LONG), await here.request("b", LONG)
        here.room.engine.submit(first)
        with pytest.raises(QueueFull):
            here.room.engine.submit(second)
        for sequence in second.sequences:
            assert sequence.structure is not None
            sequence.structure.close()
        here.room.engine.cancel(first)
        await here.check_closed()
