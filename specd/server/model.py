"""ModelService: the model, its tokenizer, and the daemon's own numbers.

Knows which message answers which call. Invariant: no call here touches the device.
"""

from __future__ import annotations

from typing import Any

import anyio
import grpc
from specd_client.v1 import model_pb2 as pb
from specd_client.v1 import model_pb2_grpc

from specd.server.convert import model_from, prompt_from
from specd.server.convert_model import (
    check_fits,
    detokenized_ids_from,
    interval_s_from,
    skip_special_tokens_from,
)
from specd.server.front import Front
from specd.server.info import Watched, model_info, server_info
from specd.server.status import with_status

Context = grpc.aio.ServicerContext[Any, Any]


class ModelServicer(model_pb2_grpc.ModelServiceServicer):
    """Serves all five calls."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._watched = Watched()

    @with_status
    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        rooms = self._front.rooms
        model_from(request, limits=rooms.limits)
        return pb.GetModelResponse(model=model_info(rooms))

    @with_status
    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        rooms = self._front.rooms
        model_from(request, limits=rooms.limits)
        prompt = prompt_from(request, limits=rooms.limits)
        return pb.TokenizeResponse(token_ids=await rooms.tokens_of(prompt))

    @with_status
    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: Context
    ) -> pb.DetokenizeResponse:
        rooms = self._front.rooms
        model_from(request, limits=rooms.limits)
        ids = detokenized_ids_from(request, limits=rooms.limits)
        text = await rooms.text_of(ids, skip_special=skip_special_tokens_from(request))
        check_fits(text)
        return pb.DetokenizeResponse(text=text)

    @with_status
    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: Context
    ) -> pb.GetServerInfoResponse:
        return pb.GetServerInfoResponse(info=server_info(self._front.rooms))

    @with_status
    async def WatchServerInfo(  # type: ignore[override]  # it writes, the stub wants it to yield
        self, request: pb.WatchServerInfoRequest, context: Context
    ) -> None:
        interval_s = interval_s_from(request)
        with self._watched.one_more():
            while True:
                info = self._watched.info(self._front.rooms)
                await context.write(pb.WatchServerInfoResponse(info=info))
                await anyio.sleep(interval_s)
