"""The async client: calls and streams over a grpc.aio channel.

Knows how async calls run and end; what they say is in `calls.py`. `sync.py` is the same without
`await`.

Invariant: a stream yields events in the order that the protocol promises or raises; however it is
left, its call is over or cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

import grpc

from specd_client import calls
from specd_client.calls import Call
from specd_client.connection import Connection
from specd_client.errors import CallFailed, ProtocolError, Unsupported, error_from, failure
from specd_client.events import Completion, Event
from specd_client.order import completion_from
from specd_client.readiness import PAUSE_S, Wait
from specd_client.request import Options, PromptOptions
from specd_client.times import time_limit
from specd_client.v1 import admin_pb2, model_pb2

T = TypeVar("T")


class Stream(Generic[T]):
    """What one call yields, in order: `async for event in stream`.

    Leaving the loop early and dropping the stream cancels the call, and so do `cancel`, `aclose`
    and leaving an `async with` block. Iterating raises CallFailed where the call ends with a
    status, ProtocolError where the server breaks the order of events, and RuntimeError while
    another task reads the stream.
    """

    def __init__(self, rpc: grpc.aio.UnaryStreamCall[Any, Any], call: Call[T]) -> None:
        self._rpc = rpc
        self._call = call
        self._is_read = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._is_read:
            raise RuntimeError("a stream has one reader, and this one is being read")
        self._is_read = True
        try:
            response = await _result(self._rpc.read)
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            self._is_read = False
        try:
            if isinstance(response, self._call.answer):
                return self._call.read(response)
            self._call.check_end()
        except ProtocolError:
            self.cancel()
            raise
        raise StopAsyncIteration

    def cancel(self) -> None:
        """Cancels the call; whoever reads it gets CallCancelled. Does nothing after its end."""
        if not self._rpc.done():
            self._rpc.cancel()

    async def aclose(self) -> None:
        """Cancels the call, for `contextlib.aclosing`."""
        self.cancel()

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
        if hasattr(self, "_rpc"):
            self.cancel()


class Client(Connection[grpc.aio.Channel]):
    """A connection to one daemon: `async with Client("localhost:50051") as client`.

    address: what gRPC takes, `host:port` or `unix:/path`. credentials: None is plain text.
    metadata: sent with every call. channel_options: of gRPC. retries: whether refused calls are
    tried again, as `specd_client/service_config.json` says. The timeout_s of a method is the
    deadline of its whole call, retries included; None is no deadline, and so are more than ten
    years. One that is nan or negative raises ValueError.
    """

    async def __aenter__(self) -> Self:
        self._open(grpc.aio.insecure_channel, grpc.aio.secure_channel)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close().close()

    def stream(
        self,
        text: str | None = None,
        *,
        token_ids: Iterable[int] | None = None,
        messages: Iterable[Mapping[str, str]] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Stream[Event]:
        """Starts a generation and returns its events. Raises TypeError for bad options."""
        return self._start(calls.stream(text, token_ids, messages, options), timeout_s)

    async def generate(
        self,
        text: str | None = None,
        *,
        token_ids: Iterable[int] | None = None,
        messages: Iterable[Mapping[str, str]] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """Returns the whole answer. Raises CallFailed or ProtocolError."""
        call = calls.stream(text, token_ids, messages, options)
        async with self._start(call, timeout_s) as stream:
            return completion_from([event async for event in stream])

    async def abort(self, request_id: str, *, timeout_s: float | None = None) -> bool:
        """Ends a generation, whose stream finishes with ABORTED. Returns whether it was live."""
        return await self._ask(calls.abort(request_id), timeout_s)

    async def model(
        self, name: str | None = None, *, timeout_s: float | None = None
    ) -> model_pb2.ModelInfo:
        """Returns the description of a model, by default the one that is served."""
        return await self._ask(calls.model(name), timeout_s)

    async def tokenize(
        self,
        text: str | None = None,
        *,
        token_ids: Iterable[int] | None = None,
        messages: Iterable[Mapping[str, str]] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[PromptOptions],
    ) -> tuple[int, ...]:
        """Returns the token ids that a generation of this prompt would start from."""
        return await self._ask(calls.tokenize(text, token_ids, messages, options), timeout_s)

    async def detokenize(
        self,
        token_ids: Iterable[int],
        *,
        skip_special_tokens: bool | None = None,
        model: str | None = None,
        timeout_s: float | None = None,
    ) -> str:
        """Returns the text of token ids."""
        return await self._ask(calls.detokenize(token_ids, skip_special_tokens, model), timeout_s)

    async def server_info(self, *, timeout_s: float | None = None) -> model_pb2.ServerInfo:
        """Returns what the server says of itself now."""
        return await self._ask(calls.server_info(), timeout_s)

    def watch_server_info(
        self, interval_s: float | None = None, *, timeout_s: float | None = None
    ) -> Stream[model_pb2.ServerInfo]:
        """Starts to yield what the server says of itself, at once and then at an interval."""
        return self._start(calls.watch_server_info(interval_s), timeout_s)

    async def wait_ready(self, timeout_s: float | None = None) -> None:
        """Waits until the server takes generations, also for one that is not there yet.

        Raises:
            DeadlineExceeded: not within timeout_s; the message tells the last state.
            CallFailed: what waiting cannot cure, for instance a server without health checks.
        """
        wait = Wait(timeout_s)
        while True:
            try:
                async with self._start(wait.watch(), wait.left_s()) as states:
                    async for serving in states:
                        if serving:
                            return
            except CallFailed as error:
                wait.endure(error)
            await asyncio.sleep(PAUSE_S)

    async def drain(
        self, timeout_s: float | None = None, *, call_timeout_s: float | None = None
    ) -> admin_pb2.DrainResponse:
        """Refuses new requests and returns when none is live; for the address of the admin calls.

        timeout_s: after this, live generations end with ABORTED; None waits as long as they take.
        call_timeout_s: the deadline of this call.
        """
        limit_s = time_limit("call_timeout_s", call_timeout_s)
        try:
            return await self._ask(calls.drain(timeout_s), limit_s)
        except Unsupported as error:
            raise calls.no_drain(error) from None

    async def _ask(self, call: Call[T], timeout_s: float | None) -> T:
        method = self.channel.unary_unary(
            call.method, type(call.request).SerializeToString, call.answer.FromString
        )
        limit_s = time_limit("timeout_s", timeout_s)
        answer = await _result(
            lambda: method(call.request, timeout=limit_s, metadata=self._metadata)
        )
        return call.read(answer)

    def _start(self, call: Call[T], timeout_s: float | None) -> Stream[T]:
        method = self.channel.unary_stream(
            call.method, type(call.request).SerializeToString, call.answer.FromString
        )
        limit_s = time_limit("timeout_s", timeout_s)
        return Stream(method(call.request, timeout=limit_s, metadata=self._metadata), call)


async def _result(start: Callable[[], Awaitable[Any]]) -> Any:
    """Waits for grpc.aio, and turns its errors into those of this package.

    It raises CancelledError for a cancelled call as for a cancelled task. Only the latter counts as
    a cancellation that arrived while we waited; older ones the task may have chosen to outlive.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling() > 0:
        await asyncio.sleep(0)  # raises the last of them, should it not have arrived yet
    before = task.cancelling() if task is not None else 0
    try:
        return await start()
    except grpc.aio.AioRpcError as error:
        raise error_from(error) from None
    except asyncio.CancelledError:
        if task is not None and task.cancelling() > before:
            raise
        raise failure(grpc.StatusCode.CANCELLED, "cancelled by this client") from None
