"""Structures are made off the event loop, a bounded amount at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from benchmarks.toy_gguf import tokenizer_metadata, toy_vocabulary
from specd.errors import InvalidField, TooManyStructures
from specd.structure.compiling import compiled
from specd.structure.drafter import GrammarDrafter
from specd.structure.judge import Judge
from specd.structure.workshop import BYTES_PER_SEQUENCE, Workshop, wanted
from specd.text.tokenizer import Tokenizer
from tests.support.requests import toy_tokenizer
from tests.unit.structure.support import (
    NUM_ROWS,
    PERSON,
    byte_level,
    mask_behind,
    schema,
    structure,
)
from tests.unit.structure.test_compiling import WORDS
from tests.unit.structure.test_judge import TRAPS

NUMBER = structure("regex", "[0-9]+")
ONE = BYTES_PER_SEQUENCE + len("[0-9]+")
# Tens of milliseconds of one compile.
COSTLY = schema({"properties": {word: {"type": "string"} for word in WORDS[:400]}})


@asynccontextmanager
async def workshop(
    drafter: GrammarDrafter | None = None,
    *,
    patience_s: float = 30.0,
    max_live_bytes: int = 1 << 20,
    judge_s: float = 0.5,
) -> AsyncIterator[Workshop]:
    """An open workshop that must be empty in the end."""
    shop = Workshop(
        drafter or GrammarDrafter(), patience_s=patience_s, max_live_bytes=max_live_bytes
    )
    await shop.open(toy_tokenizer(), NUM_ROWS)
    shop._judge = Judge(byte_level(), judge_s)
    try:
        yield shop
        assert shop.live_bytes == 0
    finally:
        shop.close()
        for thread in (shop._trying, shop._compiling):
            assert thread.close(30.0), thread.name


async def made_all(shop: Workshop) -> None:
    """Wait until nothing is being made, and what was given back is counted."""
    await shop._compiling.call(lambda: None)


@pytest.mark.asyncio
async def test_each_sequence_gets_a_structure_of_its_own() -> None:
    async with workshop() as shop:
        first, second = await shop.make(NUMBER, 2)
        first.commit([ord("1")])
        assert not (mask_behind(first) == mask_behind(second)).all()
        assert shop.live_bytes == 2 * ONE
        first.close()
        assert shop.live_bytes == ONE
        second.close()


@pytest.mark.asyncio
async def test_a_live_structure_is_found_by_its_drafter_until_it_is_closed() -> None:
    drafter = GrammarDrafter()
    async with workshop(drafter) as shop:
        [sequence] = await shop.make(structure("choice", "the harbour"), 1)
        assert drafter.live == {}
        sequence.begin("r")
        assert drafter.live == {"r": sequence}
        sequence.close()
        assert drafter.live == {}


@pytest.mark.asyncio
async def test_a_refused_structure_leaves_nothing_behind() -> None:
    async with workshop() as shop:
        for params in (structure("regex", "("), structure("json_schema", "{"), TRAPS["negation"]):
            with pytest.raises(InvalidField):
                await shop.make(params, 1)
            assert shop.live_bytes == 0


@pytest.mark.asyncio
async def test_a_trap_is_refused_and_never_tried_again() -> None:
    async with workshop() as shop:
        for _ in range(2):
            with pytest.raises(InvalidField) as refused:
                await shop.make(TRAPS["multiple"], 1)
            assert refused.value.field == "structure.json_schema"
            assert "takes more than 0.5 s to compile" in refused.value.problem
            assert shop._judge is not None
            assert shop._judge._process is None, "killed, and not started again"


class Counting(Judge):
    """Counts what it is asked."""

    num_checks = 0

    def check(self, order: str) -> None:
        self.num_checks += 1
        super().check(order)


@pytest.mark.asyncio
async def test_a_trap_that_many_set_at_once_is_tried_once() -> None:
    async with workshop() as shop:
        judge = shop._judge = Counting(byte_level(), 0.5)
        attempts = [shop.make(TRAPS["multiple"], 1) for _ in range(5)]
        results = await asyncio.gather(*attempts, return_exceptions=True)
        assert [type(result) for result in results] == [InvalidField] * 5
        assert judge.num_checks == 1


@pytest.mark.asyncio
async def test_work_that_nobody_waits_for_is_not_begun() -> None:
    async with workshop() as shop:
        go_on, done = threading.Event(), list[str]()
        shop._compiling.post(go_on.wait)
        left = asyncio.create_task(wanted(shop._compiling, lambda: done.append("left")))
        kept = asyncio.create_task(wanted(shop._compiling, lambda: done.append("kept")))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await kept
        assert done == ["kept"]


@pytest.mark.asyncio
async def test_what_is_known_does_not_wait_behind_a_trap() -> None:
    async with workshop(judge_s=20.0) as shop:
        [known] = await shop.make(NUMBER, 1)
        known.close()
        trap = asyncio.create_task(shop.make(TRAPS["negation"], 1))
        await asyncio.sleep(0)
        [again] = await asyncio.wait_for(shop.make(NUMBER, 1), 10.0)
        again.close()
        assert not trap.done()
        trap.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trap
        await made_all(shop)
        assert shop.live_bytes == 0
        assert shop._judge is not None and shop._judge._process is not None
        shop._judge._process.kill()


@pytest.mark.asyncio
async def test_whoever_waits_too_long_behind_a_trap_is_told_to_come_again() -> None:
    async with workshop(patience_s=1.0, judge_s=3.0) as shop:
        trap = asyncio.create_task(shop.make(TRAPS["negation"], 1))
        await asyncio.sleep(0)
        results = await asyncio.gather(trap, shop.make(schema(PERSON), 1), return_exceptions=True)
        assert [type(result) for result in results] == [TooManyStructures] * 2
        await made_all(shop)
        assert shop.live_bytes == 0


@pytest.mark.asyncio
async def test_the_event_loop_turns_while_structures_are_made() -> None:
    async with workshop() as shop:
        turns = 0
        making = asyncio.create_task(shop.make(COSTLY, 8))
        while not making.done():
            await asyncio.sleep(0)
            turns += 1
        for sequence in await making:
            sequence.close()
        assert turns > 100


@pytest.mark.asyncio
async def test_there_is_room_for_so_much_text_and_no_more() -> None:
    async with workshop(max_live_bytes=3 * ONE) as shop:
        held = await shop.make(NUMBER, 2)
        with pytest.raises(TooManyStructures):
            await shop.make(NUMBER, 2)
        held += await shop.make(NUMBER, 1)
        for sequence in held:
            sequence.close()
        # Alone it may be larger than all the room.
        for sequence in await shop.make(NUMBER, 9):
            sequence.close()


@pytest.mark.asyncio
async def test_what_was_made_for_somebody_who_has_gone_is_let_go() -> None:
    async with workshop() as shop:
        making = asyncio.create_task(shop.make(COSTLY, 8))
        await asyncio.sleep(0)
        assert shop.live_bytes > 0
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        await made_all(shop)
        assert shop.live_bytes == 0


@pytest.mark.asyncio
async def test_a_slow_structure_is_refused_for_many_sequences_and_made_for_one() -> None:
    async with workshop() as shop:
        [sequence] = await shop.make(schema(PERSON), 1)
        sequence.close()
        [digest] = shop._judged
        shop._judged[digest] = 0.3  # as if it had taken so long
        [sequence] = await shop.make(schema(PERSON), 1)
        sequence.close()
        with pytest.raises(InvalidField, match="takes 0.3 s to compile for each of 4 sequences"):
            await shop.make(schema(PERSON), 4)
        assert shop.live_bytes == 0


@pytest.mark.asyncio
async def test_a_regex_whose_first_mask_takes_a_second_is_known_from_then_on() -> None:
    """Its compile takes a millisecond, the mask behind it a second, and then it fails."""
    async with workshop() as shop:
        for _ in range(2):
            with pytest.raises(InvalidField):
                await shop.make(structure("regex", "((((a{50}){50}){50}){50}){50}"), 1)
        [found] = shop._judged.values()
        assert isinstance(found, str) or found > 0.05


@pytest.mark.asyncio
async def test_matchers_that_nobody_waits_for_are_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of sixteen at most the one that is being made when the caller goes."""
    made, first = [], threading.Event()

    def counted(*args: object) -> object:
        made.append(args)
        first.set()
        release.wait(10)
        return compiled(*args)  # type: ignore[arg-type]

    release = threading.Event()
    async with workshop() as shop:
        [known] = await shop.make(schema(PERSON), 1)
        known.close()
        monkeypatch.setattr("specd.structure.workshop.compiled", counted)
        task = asyncio.create_task(shop.make(schema(PERSON), 16))
        await asyncio.to_thread(first.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert shop.live_bytes > 0, "one is still being made, and takes its memory"
        release.set()
        monkeypatch.undo()
        [after] = await shop.make(schema(PERSON), 1)
        after.close()
        assert len(made) == 1
        assert shop.live_bytes == 0


@pytest.mark.asyncio
async def test_a_model_without_an_end_takes_no_structure() -> None:
    vocabulary = toy_vocabulary(specials=("<|a|>", "<|b|>", "<|c|>"))
    metadata = {
        key: value
        for key, value in tokenizer_metadata(toy_vocabulary()).items()
        if not key.endswith("_token_id")
    } | {"tokenizer.ggml.tokens": vocabulary.tokens}
    tokenizer = Tokenizer.from_gguf(metadata)
    assert not tokenizer.eos_ids
    shop = Workshop(GrammarDrafter())
    await shop.open(tokenizer, 512)
    with pytest.raises(InvalidField) as refused:
        await shop.make(NUMBER, 1)
    assert refused.value.field == "structure"
    shop.close()


@pytest.mark.asyncio
async def test_digests_are_of_the_whole_order() -> None:
    """Equal text as another kind is another structure."""
    async with workshop() as shop:
        for params in (structure("regex", "true"), structure("json_schema", "true")):
            [sequence] = await shop.make(params, 1)
            sequence.close()
        assert len(shop._judged) == 2
        assert all(isinstance(seconds, float) for seconds in shop._judged.values())
