"""A real server on a real socket that plays scripts to the client, and events to make them of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from specd_client import Client
from specd_client.v1 import generation_pb2 as pb
from specd_client.v1 import generation_pb2_grpc, model_pb2, model_pb2_grpc

from specd import errors
from specd.server.status import abort_with

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


class Scripted(generation_pb2_grpc.GenerationServiceServicer, model_pb2_grpc.ModelServiceServicer):
    """Plays a script to every StreamGenerate; keeps the last request and its metadata."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.request = pb.StreamGenerateRequest()
        self.metadata: dict[str, object] = {}
        self.cancelled = asyncio.Event()

    async def StreamGenerate(
        self, request: pb.StreamGenerateRequest, context: Context
    ) -> AsyncIterator[pb.StreamGenerateResponse]:
        self.request = request
        self.metadata = dict(context.invocation_metadata() or ())
        try:
            async for response in self.script(request, context):
                yield response
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def AbortGeneration(
        self, request: pb.AbortGenerationRequest, context: Context
    ) -> pb.AbortGenerationResponse:
        if not request.request_id:
            await abort_with(context, errors.InvalidField("request_id", "is empty"))
        return pb.AbortGenerationResponse(found=request.request_id == "live")

    async def GetServerInfo(
        self, request: model_pb2.GetServerInfoRequest, context: Context
    ) -> model_pb2.GetServerInfoResponse:
        return model_pb2.GetServerInfoResponse(info=model_pb2.ServerInfo(version="1.2.3"))

    def unused(self, request: object, context: Context) -> Any:
        raise NotImplementedError

    Generate = GetModel = Tokenize = Detokenize = WatchServerInfo = unused


@asynccontextmanager
async def serving(script: Script, **options: Any) -> AsyncIterator[tuple[Client, Scripted]]:
    """A server that plays `script`, and a client of it."""
    server = grpc.aio.server()
    scripted = Scripted(script)
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(scripted, server)
    model_pb2_grpc.add_ModelServiceServicer_to_server(scripted, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with Client(f"127.0.0.1:{port}", **options) as client:
            yield client, scripted
    finally:
        await server.stop(None)


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


def play_and_fail(error: Exception, *responses: pb.StreamGenerateResponse) -> Script:
    async def script(_: object, context: Context) -> AsyncIterator[pb.StreamGenerateResponse]:
        for response in responses:
            yield response
        await abort_with(context, error)

    return script
