"""The client without asyncio: the names and types of `specd_client.client` over a grpc channel.

Knows how blocking calls run and end; what they say is in `calls.py`. A client serves any number of
threads; a stream has one reader, and anyone may cancel it.

Invariant: a stream yields events in the order that the protocol promises or raises; however it is
left, its call is over or cancelled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

import grpc

from specd_client import calls
from specd_client.calls import Call
from specd_client.connection import Connection
from specd_client.errors import CallFailed, Unsupported, error_from
from specd_client.events import Completion, Event
from specd_client.order import completion_from
from specd_client.readiness import PAUSE_S, Wait
from specd_client.request import Options, PromptOptions
from specd_client.times import time_limit
from specd_client.v1 import admin_pb2, model_pb2

T = TypeVar("T")


class Stream(Generic[T]):
    """What one call yields, in order: `for event in stream`.

    Leaving the loop early and dropping the stream cancels the call, and so do `cancel`, `close`,
    leaving a `with` block and Ctrl-C. Iterating raises CallFailed where the call ends with a
    status, ProtocolError where the server breaks the order of events, and RuntimeError while
    another thread reads the stream.
    """

    # grpc cancels a call by itself when nothing refers to `_rpc` any more.
    def __init__(self, rpc: Any, call: Call[T]) -> None:
        self._rpc = rpc
        self._call = call
        self._read = threading.Lock()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if not self._read.acquire(blocking=False):
            raise RuntimeError("a stream has one reader, and this one is being read")
        try:
            with _typed_errors():
                response = next(self._rpc, None)
            if response is not None:
                return self._call.read(response)
            self._call.check_end()
        except BaseException:
            self.cancel()
            raise
        finally:
            self._read.release()
        raise StopIteration

    def cancel(self) -> None:
        """Cancels the call; whoever reads it gets CallCancelled. Does nothing after its end."""
        self._rpc.cancel()

    def close(self) -> None:
        """Cancels the call, for `contextlib.closing`."""
        self.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()


class Client(Connection[grpc.Channel]):
    """A connection to one daemon: `with Client("localhost:50051") as client`.

    address: what gRPC takes, `host:port` or `unix:/path`. credentials: None is plain text.
    metadata: sent with every call. channel_options: of gRPC. retries: whether refused calls are
    tried again, as `specd_client/service_config.json` says. The timeout_s of a method is the
    deadline of its whole call, retries included; None is no deadline, and so are more than ten
    years. One that is nan or negative raises ValueError.
    """

    def __enter__(self) -> Self:
        self._open(grpc.insecure_channel, grpc.secure_channel)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close().close()

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

    def generate(
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
        with self._start(call, timeout_s) as stream:
            return completion_from(list(stream))

    def abort(self, request_id: str, *, timeout_s: float | None = None) -> bool:
        """Ends a generation, whose stream finishes with ABORTED. Returns whether it was live."""
        return self._ask(calls.abort(request_id), timeout_s)

    def model(
        self, name: str | None = None, *, timeout_s: float | None = None
    ) -> model_pb2.ModelInfo:
        """Returns the description of a model, by default the one that is served."""
        return self._ask(calls.model(name), timeout_s)

    def tokenize(
        self,
        text: str | None = None,
        *,
        token_ids: Iterable[int] | None = None,
        messages: Iterable[Mapping[str, str]] | None = None,
        timeout_s: float | None = None,
        **options: Unpack[PromptOptions],
    ) -> tuple[int, ...]:
        """Returns the token ids that a generation of this prompt would start from."""
        return self._ask(calls.tokenize(text, token_ids, messages, options), timeout_s)

    def detokenize(
        self,
        token_ids: Iterable[int],
        *,
        skip_special_tokens: bool | None = None,
        model: str | None = None,
        timeout_s: float | None = None,
    ) -> str:
        """Returns the text of token ids."""
        return self._ask(calls.detokenize(token_ids, skip_special_tokens, model), timeout_s)

    def server_info(self, *, timeout_s: float | None = None) -> model_pb2.ServerInfo:
        """Returns what the server says of itself now."""
        return self._ask(calls.server_info(), timeout_s)

    def watch_server_info(
        self, interval_s: float | None = None, *, timeout_s: float | None = None
    ) -> Stream[model_pb2.ServerInfo]:
        """Starts to yield what the server says of itself, at once and then at an interval."""
        return self._start(calls.watch_server_info(interval_s), timeout_s)

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Waits until the server takes generations, also for one that is not there yet.

        Raises:
            DeadlineExceeded: not within timeout_s; the message tells the last state.
            CallFailed: what waiting cannot cure, for instance a server without health checks.
        """
        wait = Wait(timeout_s)
        while True:
            try:
                with self._start(wait.watch(), wait.left_s()) as states:
                    for serving in states:
                        if serving:
                            return
            except CallFailed as error:
                wait.endure(error)
            time.sleep(PAUSE_S)

    def drain(
        self, timeout_s: float | None = None, *, call_timeout_s: float | None = None
    ) -> admin_pb2.DrainResponse:
        """Refuses new requests and returns when none is live; for the address of the admin calls.

        timeout_s: after this, live generations end with ABORTED; None waits as long as they take.
        call_timeout_s: the deadline of this call.
        """
        limit_s = time_limit("call_timeout_s", call_timeout_s)
        try:
            return self._ask(calls.drain(timeout_s), limit_s)
        except Unsupported as error:
            raise calls.no_drain(error) from None

    def _ask(self, call: Call[T], timeout_s: float | None) -> T:
        method = self.channel.unary_unary(
            call.method, type(call.request).SerializeToString, call.answer.FromString
        )
        limit_s = time_limit("timeout_s", timeout_s)
        with _typed_errors():
            answer = method(call.request, timeout=limit_s, metadata=self._metadata)
        return call.read(answer)

    def _start(self, call: Call[T], timeout_s: float | None) -> Stream[T]:
        method = self.channel.unary_stream(
            call.method, type(call.request).SerializeToString, call.answer.FromString
        )
        limit_s = time_limit("timeout_s", timeout_s)
        return Stream(method(call.request, timeout=limit_s, metadata=self._metadata), call)


@contextmanager
def _typed_errors() -> Iterator[None]:
    """Turns the errors of grpc into those of this package."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from(error) from None
