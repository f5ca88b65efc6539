"""The async client: a channel, and streams over it.

Knows how calls run and end; leaves requests to `request.py` and messages to `events.py`.

Invariant: a stream yields events in the order that the protocol promises or raises; however it is
left, its call is over or cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc

from specd_client.errors import ProtocolError, error_from, failure
from specd_client.events import (
    Completion,
    Delta,
    Event,
    Finished,
    SequenceFinished,
    Started,
    event_from,
)
from specd_client.request import Options, request_from
from specd_client.v1 import generation_pb2, generation_pb2_grpc, model_pb2, model_pb2_grpc

Metadata = Sequence[tuple[str, str | bytes]]
T = TypeVar("T")
_Call = grpc.aio.UnaryStreamCall[
    generation_pb2.StreamGenerateRequest, generation_pb2.StreamGenerateResponse
]


class Order:
    """The order of events that the protocol promises: one object per stream."""

    def __init__(self) -> None:
        self._started = False
        self._open: set[int] = set()
        self._closed: set[int] = set()
        self._finished = False

    def check(self, event: Event) -> None:
        """Takes the next event. Raises ProtocolError where it may not come now."""
        if self._finished:
            raise ProtocolError(f"{type(event).__name__} after finished")
        if isinstance(event, Started) is self._started:
            raise ProtocolError("a stream begins with one started and no other event")
        self._started = True
        match event:
            case Delta():
                self._check_open(event.sequence_index)
            case SequenceFinished():
                self._check_open(event.sequence_index)
                self._open.remove(event.sequence_index)
                self._closed.add(event.sequence_index)
            case Finished():
                self._check_all_closed()
                self._finished = True

    def check_end(self) -> None:
        """Raises ProtocolError where the stream may not end now."""
        if not self._finished:
            raise ProtocolError("the stream ended without finished")

    def _check_open(self, index: int) -> None:
        if index in self._closed:
            raise ProtocolError(f"an event of sequence {index} after its end")
        self._open.add(index)

    def _check_all_closed(self) -> None:
        if self._open or not self._closed:
            raise ProtocolError("finished before the end of every sequence")


class Stream:
    """The events of one generation, in order: `async for event in stream`.

    Leaving the loop early and dropping the stream cancels the call, and so do `cancel` and leaving
    an `async with` block. Iterating raises CallFailed where the call ends with a status, and
    ProtocolError where the server breaks the order of events.
    """

    def __init__(self, call: _Call) -> None:
        self._call = call
        self._order = Order()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        response = await self._read()
        try:
            if response is None:
                self._order.check_end()
                raise StopAsyncIteration
            event = event_from(response)
            self._order.check(event)
        except ProtocolError:
            self.cancel()
            raise
        return event

    def cancel(self) -> None:
        """Cancels the call; whoever reads it gets CallCancelled. Does nothing after its end."""
        if not self._call.done():
            self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        if hasattr(self, "_call"):
            self.cancel()

    async def _read(self) -> generation_pb2.StreamGenerateResponse | None:
        """Returns the next message, None at the end of a call whose status is OK."""
        try:
            response = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise error_from(error) from None
        except asyncio.CancelledError:
            # grpc raises this for a cancelled call too; the task itself was told nothing.
            if _task_is_cancelled():
                raise
            raise failure(grpc.StatusCode.CANCELLED, "cancelled by this client") from None
        if isinstance(response, generation_pb2.StreamGenerateResponse):
            return response
        return None


class Client:
    """A connection to one daemon: `async with Client("localhost:50051") as client`.

    address: what grpc takes, `host:port` or `unix:/path`. credentials: None is plain text.
    metadata: sent with every call. channel_options: of grpc.aio.
    """

    def __init__(
        self,
        address: str,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Metadata = (),
        channel_options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._metadata = tuple(metadata)
        self._channel_options = tuple(channel_options)
        self._channel: grpc.aio.Channel | None = None

    async def __aenter__(self) -> Self:
        if self._channel is not None:
            raise RuntimeError("this client is open already")
        if self._credentials is None:
            self._channel = grpc.aio.insecure_channel(self._address, self._channel_options)
        else:
            self._channel = grpc.aio.secure_channel(
                self._address, self._credentials, self._channel_options
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        channel, self._channel = self.channel, None
        await channel.close()

    @property
    def channel(self) -> grpc.aio.Channel:
        """The channel, for stubs of `specd_client.v1`. Raises RuntimeError where it is closed."""
        if self._channel is None:
            raise RuntimeError("open the client first: async with Client(address) as client")
        return self._channel

    def stream(
        self,
        text: str | None = None,
        *,
        token_ids: Iterable[int] | None = None,
        messages: Iterable[Mapping[str, str]] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Stream:
        """Starts a generation and returns its events. Raises TypeError for bad options."""
        request = request_from(text, token_ids, messages, options)
        stub = generation_pb2_grpc.GenerationServiceStub(self.channel)
        return Stream(stub.StreamGenerate(request, timeout=timeout_s, metadata=self._metadata))

    async def generate(
        self,
        text: str | None = None,
        *,
        token_ids: Iterable[int] | None = None,
        messages: Iterable[Mapping[str, str]] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """Generates one sequence and returns all of it. Raises CallFailed or ProtocolError."""
        if (options.get("num_sequences") or 1) > 1:
            raise ValueError("generate gathers one sequence; use stream for more")
        stream = self.stream(
            text, token_ids=token_ids, messages=messages, timeout_s=timeout_s, **options
        )
        async with stream:
            return _completion([event async for event in stream])

    async def abort(self, request_id: str) -> bool:
        """Ends a generation, whose stream finishes with ABORTED. Returns whether it was live."""
        stub = generation_pb2_grpc.GenerationServiceStub(self.channel)
        request = generation_pb2.AbortGenerationRequest(request_id=request_id)
        response = await _answer(stub.AbortGeneration(request, metadata=self._metadata))
        return response.found

    async def server_info(self) -> model_pb2.ServerInfo:
        """Returns what the server says of itself now. Raises CallFailed."""
        stub = model_pb2_grpc.ModelServiceStub(self.channel)
        request = model_pb2.GetServerInfoRequest()
        response = await _answer(stub.GetServerInfo(request, metadata=self._metadata))
        return response.info


async def _answer(call: Awaitable[T]) -> T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise error_from(error) from None


def _completion(events: Sequence[Event]) -> Completion:
    """Returns the whole answer that a checked stream of one sequence told."""
    started, *_, sequence, finished = events
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    if not isinstance(sequence, SequenceFinished):
        raise ProtocolError("something between the end of the sequence and finished")
    deltas = [event for event in events if isinstance(event, Delta)]
    return Completion(
        started=started,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token_id for delta in deltas for token_id in delta.token_ids),
        logprobs=tuple(logprob for delta in deltas for logprob in delta.logprobs),
        steps=tuple(step for delta in deltas for step in delta.steps),
        finish_reason=sequence.finish_reason,
        matched_token_id=sequence.matched_token_id,
        matched_stop_string=sequence.matched_stop_string,
        usage=finished.usage,
        speculation=finished.speculation,
    )


def _task_is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
