"""GenerationService: a call comes in, its events go out.

Knows one call at a time. Invariant: nothing is sent before the request is admitted, so a refused
call has no headers and may be retried; however a call ends, its request is cancelled.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import anyio.to_thread
import grpc
from specd_client.v1 import generation_pb2 as pb
from specd_client.v1 import generation_pb2_grpc

from specd.engine.events import Event
from specd.engine.generation import Generation
from specd.engine.params import OutputParams
from specd.server.convert import GenerationRequest, aborted_id_from, call_from
from specd.server.front import Front
from specd.server.status import with_status
from specd.server.wire import WholeAnswer, num_logprobs, response_from

# Each takes about a microsecond.
MANY_LOGPROBS = 2000

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Serves Generate, StreamGenerate and AbortGeneration."""

    def __init__(self, front: Front) -> None:
        self._front = front

    @with_status
    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        async with self._admitted(request, context) as (live, output):
            answer = WholeAnswer(output)
            async for event in live.mailbox:
                await _off_loop_if_large(answer.add, event)
            return answer.response()

    @with_status
    async def StreamGenerate(  # type: ignore[override]  # it writes, the stub wants it to yield
        self, request: pb.StreamGenerateRequest, context: Context
    ) -> None:
        async with self._admitted(request, context) as (live, output):
            async for event in live.mailbox:
                tell = partial(response_from, output=output)
                await context.write(await _off_loop_if_large(tell, event))

    @with_status
    async def AbortGeneration(
        self, request: pb.AbortGenerationRequest, context: Context
    ) -> pb.AbortGenerationResponse:
        request_id = aborted_id_from(request)
        return pb.AbortGenerationResponse(found=self._front.rooms.engine.abort(request_id))

    @asynccontextmanager
    async def _admitted(
        self, request: GenerationRequest, context: Context
    ) -> AsyncIterator[tuple[Generation, OutputParams]]:
        rooms = self._front.rooms
        call = call_from(request, limits=rooms.limits)
        live = await rooms.submit(call, context.time_remaining)
        try:
            yield live, call.params.output
        finally:
            # gRPC tells a handler of a lost reader in several ways; this line serves them all.
            rooms.engine.cancel(live)


async def _off_loop_if_large(tell: Callable[[Event], T], event: Event) -> T:
    """Call `tell`, on a thread where it takes milliseconds: all streams share the loop."""
    if num_logprobs(event) <= MANY_LOGPROBS:
        return tell(event)
    return await anyio.to_thread.run_sync(tell, event)
