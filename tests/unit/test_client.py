"""Streams of the async client against a real server on a real socket, which plays a script."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing

import pytest
from specd_client import (
    Alternative,
    CallCancelled,
    Client,
    DeadlineExceeded,
    Delta,
    Event,
    Finished,
    FinishReason,
    ProtocolError,
    SequenceFinished,
    Started,
    Stream,
    TokenLogprob,
)
from specd_client.v1 import generation_pb2 as pb
from specd_client.v1 import types_pb2

from tests.support.scripted_server import (
    FINISHED,
    HEL,
    LO,
    STARTED,
    STOPPED,
    WHOLE,
    play,
    play_and_hang,
    serving,
)

WAIT_S = 10.0
LOGPROB = pb.TokenLogprob(
    token_id=7,
    logprob=0.0,
    rank=1,
    alternatives=[
        pb.Alternative(token_id=7, logprob=0.0),
        pb.Alternative(token_id=0, logprob=-1.5),
    ],
)
SECOND = pb.StreamGenerateResponse(delta=pb.Delta(sequence_index=1, text="x"))


def end_of(index: int) -> pb.StreamGenerateResponse:
    ended = pb.SequenceFinished(sequence_index=index, finish_reason=pb.FINISH_REASON_MAX_TOKENS)
    return pb.StreamGenerateResponse(sequence_finished=ended)


async def eventually(happens: Awaitable[object]) -> None:
    await asyncio.wait_for(happens, WAIT_S)


@pytest.mark.asyncio
async def test_events_arrive_typed_and_in_order() -> None:
    async with serving(play(*WHOLE)) as (client, _):
        events = [event async for event in client.stream("Hi")]
    kinds = [Started, Delta, Delta, SequenceFinished, Finished]
    assert [type(event) for event in events] == kinds
    started, first, _, stopped, finished = events
    assert isinstance(started, Started) and started.seed == 2**64 - 1
    assert isinstance(first, Delta) and first.token_ids == (0, 7)
    assert [step.drafter for step in first.steps] == ["ngram"]
    assert isinstance(stopped, SequenceFinished) and stopped.matched_token_id == 0
    assert stopped.matched_stop_string is None
    assert isinstance(finished, Finished)
    assert finished.speculation.by_drafter["ngram"].draft_tokens == 3


@pytest.mark.asyncio
async def test_generate_joins_the_deltas() -> None:
    async with serving(play(*WHOLE)) as (client, _):
        answer = await client.generate("Hi")
    assert (answer.text, answer.token_ids) == ("Hello", (0, 7, 9))
    assert (answer.request_id, answer.seed) == ("r-1", 2**64 - 1)
    assert answer.finish_reason is FinishReason.EOS_TOKEN
    assert answer.usage.completion_tokens == 3
    assert answer.speculation.total.accepted_length_histogram == (1, 1)


@pytest.mark.asyncio
async def test_log_probabilities_arrive_with_rank_and_alternatives() -> None:
    prompt = [pb.TokenLogprob(token_id=5), LOGPROB]
    started = pb.StreamGenerateResponse(started=pb.Started(prompt_logprobs=prompt))
    delta = pb.StreamGenerateResponse(delta=pb.Delta(logprobs=[LOGPROB, LOGPROB]))
    async with serving(play(started, delta, delta, STOPPED, FINISHED)) as (client, _):
        answer = await client.generate("Hi")
    read = TokenLogprob(7, 0.0, 1, (Alternative(7, 0.0), Alternative(0, -1.5)))
    assert answer.logprobs == (read,) * 4
    assert answer.started.prompt_logprobs == (TokenLogprob(5, None, None, ()), read)


@pytest.mark.asyncio
async def test_generate_gathers_each_sequence() -> None:
    seeds = pb.StreamGenerateResponse(started=pb.Started(seed=3, sequence_seeds=[3, 2**64 - 1]))
    events = (seeds, SECOND, HEL, end_of(1), LO, STOPPED, FINISHED)
    async with serving(play(*events)) as (client, _):
        answer = await client.generate("Hi", num_sequences=2)
    first, second = answer.sequences
    assert (first.text, first.token_ids, first.completion_tokens) == ("Hello", (0, 7, 9), 3)
    assert (first.finish_reason, first.matched_token_id) == (FinishReason.EOS_TOKEN, 0)
    assert (second.text, second.finish_reason) == ("x", FinishReason.MAX_TOKENS)
    assert answer.started.sequence_seeds == (3, 2**64 - 1)
    assert (answer.text, answer.finish_reason) == (first.text, first.finish_reason)


@pytest.mark.asyncio
async def test_leaving_the_loop_cancels_the_call() -> None:
    async with serving(play_and_hang(STARTED, HEL)) as (client, scripted):
        async for event in client.stream("Hi"):
            if isinstance(event, Delta):
                break
        gc.collect()
        await eventually(scripted.cancelled.wait())


@pytest.mark.asyncio
async def test_leaving_the_block_cancels_the_call() -> None:
    async with serving(play_and_hang(STARTED)) as (client, scripted):
        with pytest.raises(ZeroDivisionError):
            async with client.stream("Hi") as stream:
                await anext(stream)
                raise ZeroDivisionError
        await eventually(scripted.cancelled.wait())


@pytest.mark.asyncio
async def test_cancelling_the_reader_cancels_the_call() -> None:
    reading = asyncio.Event()

    async def read(client: Client) -> None:
        async for _ in client.stream("Hi"):
            reading.set()

    async with serving(play_and_hang(STARTED)) as (client, scripted):
        task = asyncio.create_task(read(client))
        await eventually(reading.wait())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(scripted.cancelled.wait())


@pytest.mark.asyncio
async def test_closing_a_generator_around_a_stream_cancels_the_call() -> None:
    async def texts(client: Client) -> AsyncGenerator[str, None]:
        async for event in client.stream("Hi"):
            if isinstance(event, Delta):
                yield event.text

    async with serving(play_and_hang(STARTED, HEL)) as (client, scripted):
        async with aclosing(texts(client)) as generator:
            assert await anext(generator) == "Hel"
        gc.collect()
        await eventually(scripted.cancelled.wait())


@pytest.mark.asyncio
async def test_closing_a_stream_cancels_the_call() -> None:
    async with serving(play_and_hang(STARTED)) as (client, scripted):
        async with aclosing(client.stream("Hi")) as stream:
            await anext(stream)
        await eventually(scripted.cancelled.wait())


def test_a_stream_may_outlive_its_loop() -> None:
    async def leave() -> Stream[Event]:
        async with serving(play_and_hang(STARTED)) as (client, _):
            stream = client.stream("Hi")
            await anext(stream)
            return stream

    stream = asyncio.run(leave())
    stream.cancel()
    del stream
    gc.collect()


@pytest.mark.asyncio
async def test_another_task_can_cancel_a_stream_that_is_being_read() -> None:
    async def read(stream: Stream[Event]) -> None:
        async for _ in stream:
            reading.set()

    reading = asyncio.Event()
    async with serving(play_and_hang(STARTED)) as (client, scripted):
        stream = client.stream("Hi")
        task = asyncio.create_task(read(stream))
        await eventually(reading.wait())
        stream.cancel()
        with pytest.raises(CallCancelled):
            await task
        await eventually(scripted.cancelled.wait())


@pytest.mark.asyncio
async def test_leaving_a_watch_cancels_its_call() -> None:
    async with serving(play()) as (client, scripted):
        async for info in client.watch_server_info():
            if info.counters.steps == 2:
                break
        gc.collect()
        await eventually(scripted.cancelled.wait())


@pytest.mark.asyncio
async def test_a_reader_of_a_cancelled_stream_gets_an_error_and_no_task_cancellation() -> None:
    async with serving(play_and_hang(STARTED)) as (client, _):
        stream = client.stream("Hi")
        await anext(stream)
        stream.cancel()
        with pytest.raises(CallCancelled):
            await anext(stream)


@pytest.mark.asyncio
async def test_the_timeout_ends_the_whole_call() -> None:
    async with serving(play_and_hang(STARTED)) as (client, _):
        with pytest.raises(DeadlineExceeded):
            await client.generate("Hi", timeout_s=0.05)


VIOLATIONS = {
    "no finished": (STARTED, HEL, STOPPED),
    "nothing at all": (),
    "no started": (HEL, STOPPED, FINISHED),
    "started twice": (STARTED, STARTED, STOPPED, FINISHED),
    "finished before the sequence": (STARTED, HEL, FINISHED),
    "finished without a sequence": (STARTED, FINISHED),
    "a sequence too many": (STARTED, HEL, STOPPED, end_of(1), FINISHED),
    "a delta of a sequence too many": (STARTED, SECOND, STOPPED, FINISHED),
    "delta after the sequence": (STARTED, STOPPED, HEL, FINISHED),
    "sequence twice": (STARTED, STOPPED, STOPPED, FINISHED),
    "event after finished": (*WHOLE, SECOND),
    "finished twice": (*WHOLE, FINISHED),
    "no event": (STARTED, pb.StreamGenerateResponse(), STOPPED, FINISHED),
    "no reason": (
        STARTED,
        pb.StreamGenerateResponse(sequence_finished=pb.SequenceFinished()),
        FINISHED,
    ),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("responses", VIOLATIONS.values(), ids=VIOLATIONS)
async def test_a_broken_order_of_events_is_an_error(
    responses: tuple[pb.StreamGenerateResponse, ...],
) -> None:
    async with serving(play(*responses)) as (client, _):
        with pytest.raises(ProtocolError):
            async for _ in client.stream("Hi"):
                pass


@pytest.mark.asyncio
async def test_a_broken_order_cancels_the_call() -> None:
    async with serving(play_and_hang(HEL)) as (client, scripted):
        stream = client.stream("Hi")
        with pytest.raises(ProtocolError):
            await anext(stream)
        await eventually(scripted.cancelled.wait())


@pytest.mark.asyncio
async def test_two_sequences_may_alternate_and_none_may_be_missing() -> None:
    events = (STARTED, HEL, SECOND, STOPPED, SECOND, end_of(1), FINISHED)
    async with serving(play(*events)) as (client, _):
        assert len([event async for event in client.stream("Hi", num_sequences=2)]) == 7
        with pytest.raises(ProtocolError, match="before the end of every sequence"):
            await client.generate("Hi", num_sequences=3)


@pytest.mark.asyncio
async def test_metadata_goes_with_every_call() -> None:
    async with serving(play(*WHOLE), metadata=[("authorization", "Bearer t")]) as (client, served):
        await client.generate("Hi")
    assert served.metadata["authorization"] == "Bearer t"


@pytest.mark.asyncio
async def test_options_reach_the_server() -> None:
    async with serving(play(*WHOLE)) as (client, scripted):
        await client.generate(
            messages=[{"role": "user", "content": "Hi"}],
            temperature=0.0,
            stop_strings=["a"],
            logit_bias={3: 0.5},
            speculation=False,
            draft_budget_s=0.25,
            seed=None,
        )
    request = scripted.request
    assert request.input.chat.messages[0] == types_pb2.ChatMessage(role="user", content="Hi")
    assert request.sampling.HasField("temperature")
    assert not request.sampling.HasField("seed")
    assert dict(request.sampling.logit_bias) == {3: 0.5}
    assert list(request.stop.stop_strings) == ["a"]
    assert request.speculation.mode == types_pb2.SPECULATION_MODE_DISABLED
    assert request.speculation.draft_budget.ToMilliseconds() == 250


@pytest.mark.asyncio
async def test_a_closed_client_says_how_to_open_it() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        Client("127.0.0.1:1").stream("Hi")
