"""An engine over the null device, and what every test of it asserts when it is left."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from drafters.contract import Drafter
from specd.engine.drafting import Drafting
from specd.engine.facts import EngineStatistics, ModelFacts
from specd.engine.generation import EndCause
from specd.engine.loop import Engine
from specd.engine.request import Request
from specd.engine.scheduler import Limits
from specd.engine.step_types import LayoutSpec, PaddedBatch, StepResult
from tests.support.drafters import PATIENCE_S, Recorder
from tests.support.null_device import NullDevice, NullModel
from tests.support.requests import (
    EOS_ID,
    VOCAB_SIZE,
    Answer,
    make_request,
    read_all,
    toy_tokenizer,
)

TOTALS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
PACKED = LayoutSpec(TOTALS)
RECTANGLE = LayoutSpec(TOTALS, widths=(1, 2, 4, 8, 16), row_buckets=(1, 2, 4, 8))
FACTS = ModelFacts("null", VOCAB_SIZE, "fingerprint")
MODEL = NullModel(eos_id=EOS_ID, eos_every=40)


class CheckedDevice(NullDevice):
    """Checks the books whenever a step is under way, when the loop waits and all is settled."""

    engine: Engine

    async def step(self, batch: PaddedBatch) -> StepResult:
        self.engine._book.check_integrity()
        return await super().step(batch)


@dataclass
class Room:
    """What a test reaches."""

    engine: Engine
    device: NullDevice
    running: asyncio.Task[None]
    readers: list[asyncio.Task[Answer]] = field(default_factory=list)

    def start(self, request: Request) -> asyncio.Task[Answer]:
        """Submit a request and read it beside the test."""
        self.engine.submit(request.generation)
        self.readers.append(asyncio.create_task(_read(request)))
        return self.readers[-1]

    async def answer(self, request: Request) -> Answer:
        return await asyncio.wait_for(self.start(request), PATIENCE_S)

    async def answers(self, requests: Sequence[Request]) -> list[Answer]:
        """Serve all at once."""
        async with asyncio.timeout(6 * PATIENCE_S):
            return await asyncio.gather(*[self.start(request) for request in requests])

    def during_step(self, number: int, act: Callable[[], object]) -> None:
        """Call `act` while step `number`, from 1 on, is under way."""

        async def during(batch: PaddedBatch) -> None:
            if len(self.device.batches) == number:
                act()

        self.device.during = during

    def num_preemptions(self) -> int:
        """How often a request began again."""
        rows = (row for batch in self.device.batches for row in batch.rows)
        begun = Counter(row.request_id for row in rows if row.first_position == 0)
        return sum(count - 1 for count in begun.values())


async def _read(request: Request) -> Answer:
    answer = await read_all(request.generation.mailbox)
    assert not answer.cut or request.generation.end_cause is EndCause.CANCELLED, (
        "a stream without an end"
    )
    return answer


def expected(request: Request, model: NullModel = MODEL) -> list[int]:
    """The ids that a fresh request gets, whatever else happens in the daemon."""
    stop = request.params.stop
    ends = set(stop.stop_token_ids) | (set() if stop.ignore_eos else toy_tokenizer().eos_ids)
    ids = _continuation(request, model, request.output.tokens_left)
    for index, token in enumerate(ids):
        if token in ends:
            return ids[: index + 1]
    return ids


def _continuation(request: Request, model: NullModel, num_tokens: int) -> list[int]:
    sampling, stop = request.params.sampling, request.params.stop
    return model.continuation(
        sampling.seed,
        request.tokens,
        num_tokens,
        penalises=sampling.penalises,
        banned=request.output.ending_ids(),
        num_banned=stop.min_new_tokens,
    )


def whole_text(request: Request, model: NullModel = MODEL) -> list[int]:
    """Prompt and answer of a fresh request, and what the model would say behind its end."""
    return request.tokens + _continuation(request, model, 150)


def mixed_requests(
    number: int, *, drafters: tuple[str, ...] = (), longest: int = 70
) -> list[Request]:
    """Requests of many lengths; prompts share beginnings, seeds repeat."""
    return [
        make_request(
            f"r{index}",
            [7 + place % 5 for place in range(1 + (index * 23) % longest)],
            seed=index % 7,
            max_new_tokens=1 + (index * 11) % 40,
            drafters=drafters,
            max_draft_tokens=index % 9,
        )
        for index in range(number)
    ]


@asynccontextmanager
async def engine_room(
    drafters: Mapping[str, Drafter] | None = None,
    *,
    model: NullModel = MODEL,
    layout: LayoutSpec = PACKED,
    num_pages: int = 200,
    max_rows: int = 4,
    max_positions: int = 64,
    max_waiting: int = 100,
    clock: Callable[[], float] = time.perf_counter,
) -> AsyncIterator[Room]:
    """Run an engine; on leaving it is idle, owns nothing, and broke no promise to its device."""
    device = CheckedDevice(model, layout, num_pages=num_pages)
    drafting = Drafting(drafters or {})
    engine = device.engine = Engine(
        device,
        FACTS,
        drafting,
        num_pages=num_pages,
        limits=Limits(max_rows, max_positions),
        max_waiting=max_waiting,
        clock=clock,
    )
    running = asyncio.create_task(engine.run())
    room = Room(engine, device, running)
    try:
        yield room
        with anyio.fail_after(PATIENCE_S):
            if not running.done():
                await engine.wait_idle()
            await asyncio.gather(*room.readers)
        ended_well = not running.done() or running.cancelled() or device.lost
        assert ended_well, running.exception()
        assert_empty(engine.statistics())
        assert device.violations == []
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await drafting.aclose()
    assert device.violations == []


def assert_empty(found: EngineStatistics) -> None:
    """Nothing is live and nothing is owned."""
    used = (found.running, found.waiting, found.pages_used, found.slots_used)
    assert used == (0, 0, 0, 0)
    assert found.drafter_sessions == 0


def check_heard(recorder: Recorder, request: Request, answer: Answer) -> None:
    """A drafter heard begin, each committed token once and in order, and end; and only those."""
    name, prompt = request.request_id, request.tokens[: request.num_prompt_tokens]
    heard = recorder.heard_of(name)
    assert heard[0] == "begin"
    assert heard[-1] == "end"
    assert (heard.count("begin"), heard.count("end")) == (1, 1)
    told = list(prompt)
    for event in recorder.events:
        match event:
            case ("begin", str(who), list(given)) if who == name:
                assert given == prompt
            case ("observe", str(who), list(tokens), int()) if who == name:
                told += tokens
            case ("propose", list(rows), list()):
                for who, context in rows:
                    assert who != name or context == told, "a context is not what was committed"
                    assert who != name or len(context) > len(prompt), "asked before the first token"
    assert told == prompt + answer.token_ids
