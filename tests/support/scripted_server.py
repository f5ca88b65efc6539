"""A real server on a real socket that plays scripts to the clients, and events to make them of.

Knows the protocol and gRPC alone: it runs where nothing but the client is installed. What
google.rpc would declare is written here byte by byte.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import grpc
import pytest
from specd_client import Client, sync
from specd_client.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    generation_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)
from specd_client.v1 import generation_pb2 as pb

PATIENCE_S = 30.0  # of calls that end by themselves long before

Context = grpc.aio.ServicerContext[Any, Any]
Script = Callable[[pb.StreamGenerateRequest, Context], AsyncIterator[pb.StreamGenerateResponse]]

STARTED = pb.StreamGenerateResponse(
    started=pb.Started(request_id="r-1", model="tiny", prompt_tokens=2, seed=2**64 - 1)
)
HEL = pb.StreamGenerateResponse(
    delta=pb.Delta(
        text="Hel",
        token_ids=[0, 7],
        completion_tokens=2,
        steps=[pb.SpeculationStep(drafter="ngram", draft_tokens=3, accepted_draft_tokens=1)],
    )
)
LO = pb.StreamGenerateResponse(delta=pb.Delta(text="lo", token_ids=[9], completion_tokens=3))
STOPPED = pb.StreamGenerateResponse(
    sequence_finished=pb.SequenceFinished(
        finish_reason=pb.FINISH_REASON_EOS_TOKEN, matched_token_id=0
    )
)
FINISHED = pb.StreamGenerateResponse(
    finished=pb.Finished(
        usage=pb.Usage(prompt_tokens=2, completion_tokens=3),
        speculation=pb.SpeculationStats(
            total=pb.SpeculationTally(verify_steps=2, accepted_length_histogram=[1, 1]),
            by_drafter={"ngram": pb.SpeculationTally(draft_tokens=3)},
        ),
    )
)
WHOLE = (STARTED, HEL, LO, STOPPED, FINISHED)
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"  # grpc.health.v1.HealthCheckResponse


@dataclass(frozen=True, slots=True)
class Refusal:
    """A status with its details. pushback_ms: when the server wants the next attempt."""

    code: grpc.StatusCode
    message: str = "no"
    reason: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    violations: Mapping[str, str] = field(default_factory=dict)
    resource: tuple[str, str] | None = None
    pushback_ms: int | None = None

    async def end(self, context: Context) -> None:
        """Ends the call with this status."""
        await context.abort(self.code, self.message, tuple(self._trailers()))

    def _trailers(self) -> list[tuple[str, str | bytes]]:
        found: list[tuple[str, str | bytes]] = []
        if self.pushback_ms is not None:
            found.append(("grpc-retry-pushback-ms", str(self.pushback_ms)))
        if self.reason:
            details = b"".join(_part(3, packed) for packed in self._details())
            found.append(("grpc-status-details-bin", _part(2, self.message) + details))
        return found

    def _details(self) -> list[bytes]:
        entries = b"".join(_part(3, _pair(item)) for item in self.metadata.items())
        found = [_any("ErrorInfo", _part(1, self.reason) + _part(2, "specd") + entries)]
        if self.violations:
            refused = b"".join(_part(1, _pair(item)) for item in self.violations.items())
            found.append(_any("BadRequest", refused))
        if self.resource is not None:
            found.append(_any("ResourceInfo", _pair(self.resource)))
        if self.pushback_ms is not None:
            delay = b"\x10" + _varint(self.pushback_ms * 10**6)
            found.append(_any("RetryInfo", _part(1, delay)))
        return found


def _any(name: str, value: bytes) -> bytes:
    return _pair((f"type.googleapis.com/google.rpc.{name}", value))


def _pair(values: tuple[str, str | bytes]) -> bytes:
    return _part(1, values[0]) + _part(2, values[1])


def _part(number: int, value: str | bytes) -> bytes:
    """A field of text, bytes or a message."""
    raw = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2]) + _varint(len(raw)) + raw


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


QUEUE_FULL = Refusal(
    grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", "QUEUE_FULL", pushback_ms=1
)
NOT_SERVED = Refusal(
    grpc.StatusCode.UNAVAILABLE, "not serving: draining", "NOT_SERVING", pushback_ms=1
)


class Scripted(
    generation_pb2_grpc.GenerationServiceServicer,
    model_pb2_grpc.ModelServiceServicer,
    admin_pb2_grpc.AdminServiceServicer,
):
    """Plays a script to every StreamGenerate, and answers all other calls with what it got.

    request, metadata: of the last call. arrivals_s: when each attempt came. refusals: what the next
    attempts of any call are refused with, the first one first. silent: answers no call. health:
    what its watchers are told.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.request: Any = None
        self.metadata: dict[str, object] = {}
        self.arrivals_s: list[float] = []
        self.refusals: list[Refusal] = []
        self.silent = False
        self.health: asyncio.Queue[bytes] = asyncio.Queue()
        self.cancelled = asyncio.Event()

    async def _take(self, request: Any, context: Context) -> None:
        self.request = request
        self.metadata = dict(context.invocation_metadata() or ())
        self.arrivals_s.append(time.monotonic())
        if self.refusals:
            await self.refusals.pop(0).end(context)
        if self.silent:
            await asyncio.Event().wait()

    async def StreamGenerate(
        self, request: pb.StreamGenerateRequest, context: Context
    ) -> AsyncIterator[pb.StreamGenerateResponse]:
        await self._take(request, context)
        try:
            async for response in self.script(request, context):
                yield response
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def AbortGeneration(
        self, request: pb.AbortGenerationRequest, context: Context
    ) -> pb.AbortGenerationResponse:
        await self._take(request, context)
        return pb.AbortGenerationResponse(found=request.request_id == "live")

    async def GetModel(
        self, request: model_pb2.GetModelRequest, context: Context
    ) -> model_pb2.GetModelResponse:
        await self._take(request, context)
        return model_pb2.GetModelResponse(model=model_pb2.ModelInfo(name=request.model or "tiny"))

    async def Tokenize(
        self, request: model_pb2.TokenizeRequest, context: Context
    ) -> model_pb2.TokenizeResponse:
        await self._take(request, context)
        return model_pb2.TokenizeResponse(token_ids=request.input.text.encode())

    async def Detokenize(
        self, request: model_pb2.DetokenizeRequest, context: Context
    ) -> model_pb2.DetokenizeResponse:
        await self._take(request, context)
        return model_pb2.DetokenizeResponse(text=bytes(request.token_ids).decode())

    async def GetServerInfo(
        self, request: model_pb2.GetServerInfoRequest, context: Context
    ) -> model_pb2.GetServerInfoResponse:
        await self._take(request, context)
        return model_pb2.GetServerInfoResponse(info=model_pb2.ServerInfo(version="1.2.3"))

    async def WatchServerInfo(
        self, request: model_pb2.WatchServerInfoRequest, context: Context
    ) -> AsyncIterator[model_pb2.WatchServerInfoResponse]:
        await self._take(request, context)
        try:
            for steps in (1, 2):
                counters = model_pb2.ServerCounters(steps=steps)
                info = model_pb2.ServerInfo(counters=counters)
                yield model_pb2.WatchServerInfoResponse(info=info)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def Drain(
        self, request: admin_pb2.DrainRequest, context: Context
    ) -> admin_pb2.DrainResponse:
        await self._take(request, context)
        return admin_pb2.DrainResponse(finished=3, aborted=1)

    async def watch_health(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        await self._take(request, context)
        while True:
            yield await self.health.get()
            self.health.task_done()

    def unused(self, request: object, context: Context) -> Any:
        raise NotImplementedError

    Generate = ListDrafters = RegisterDrafter = DeregisterDrafter = unused


@asynccontextmanager
async def listening(
    scripted: Scripted,
    address: str = "127.0.0.1:0",
    *,
    with_health: bool = True,
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[str]:
    """A server with all services of `scripted`; yields its address."""
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(scripted, server)
    model_pb2_grpc.add_ModelServiceServicer_to_server(scripted, server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(scripted, server)
    if with_health:
        watch: Any = grpc.unary_stream_rpc_method_handler(scripted.watch_health)
        health = grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Watch": watch})
        server.add_generic_rpc_handlers([health])
    if credentials is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, credentials)
    await server.start()
    try:
        yield address if address.startswith("unix:") else f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def serving(script: Script, **options: Any) -> AsyncIterator[tuple[Client, Scripted]]:
    """A server that plays `script`, and a client of it."""
    scripted = Scripted(script)
    async with listening(scripted) as address, Client(address, **options) as client:
        yield client, scripted


@asynccontextmanager
async def serving_sync(
    script: Script, **options: Any
) -> AsyncIterator[tuple[sync.Client, Scripted]]:
    """The same with a sync client, to call from another thread than the server's."""
    scripted = Scripted(script)
    async with listening(scripted) as address:
        with sync.Client(address, **options) as client:
            yield client, scripted


def play(*responses: pb.StreamGenerateResponse) -> Script:
    async def script(_: object, __: Context) -> AsyncIterator[pb.StreamGenerateResponse]:
        for response in responses:
            yield response

    return script


def play_and_hang(*responses: pb.StreamGenerateResponse) -> Script:
    async def script(_: object, __: Context) -> AsyncIterator[pb.StreamGenerateResponse]:
        for response in responses:
            yield response
        await asyncio.Event().wait()

    return script


def play_and_fail(refusal: Refusal, *responses: pb.StreamGenerateResponse) -> Script:
    async def script(_: object, context: Context) -> AsyncIterator[pb.StreamGenerateResponse]:
        for response in responses:
            yield response
        await refusal.end(context)

    return script


FORMS: dict[str, Callable[..., Any]] = {"async": serving, "sync": serving_sync}
both_forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


async def asked(client: Client | sync.Client, ask: Callable[[Any], Any]) -> Any:
    """What a call of either client returns."""
    async with asyncio.timeout(PATIENCE_S):
        if isinstance(client, sync.Client):
            return await asyncio.to_thread(ask, client)
        return await ask(client)


async def listed(client: Client | sync.Client, start: Callable[[Any], Any], most: int) -> list[Any]:
    """The first `most` items of a stream of either client."""
    async with asyncio.timeout(PATIENCE_S):
        if isinstance(client, sync.Client):
            return await asyncio.to_thread(_listed, client, start, most)
        async with start(client) as stream:
            found = []
            async for item in stream:
                found.append(item)
                if len(found) == most:
                    break
            return found


def _listed(client: sync.Client, start: Callable[[Any], Any], most: int) -> list[Any]:
    with start(client) as stream:
        return list(islice(stream, most))
