"""Every call that the clients make, as values: method, request, and what an answer means.

Knows the protocol; knows nothing of channels, threads and event loops, so that both clients share
it. Invariant: a Call is made at most once, since it follows its own stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.message import Message

from specd_client.errors import CallFailed, Unsupported, failure
from specd_client.events import Event
from specd_client.order import Order
from specd_client.request import Options, PromptOptions, request_from, tokenize_request_from
from specd_client.times import duration, time_limit
from specd_client.v1 import admin_pb2, generation_pb2, model_pb2

T = TypeVar("T")
GENERATION = "/specd.v1.GenerationService"
MODEL = "/specd.v1.ModelService"
ADMIN = "/specd.v1.AdminService"


def _may_end() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One call to make.

    method: its path. answer: the class of each message that comes back. read: what the caller gets
    for one; raises ProtocolError. check_end: raises ProtocolError where a stream may not end now.
    """

    method: str
    request: Message
    answer: type[Message]
    read: Callable[[Any], T]
    check_end: Callable[[], None] = _may_end


def stream(
    text: str | None,
    token_ids: Iterable[int] | None,
    messages: Iterable[Mapping[str, str]] | None,
    options: Options,
) -> Call[Event]:
    """A generation. Raises TypeError for bad options."""
    request = request_from(text, token_ids, messages, options)
    order = Order(options.get("num_sequences") or 1)
    answer = generation_pb2.StreamGenerateResponse
    return Call(f"{GENERATION}/StreamGenerate", request, answer, order.read, order.check_end)


def abort(request_id: str) -> Call[bool]:
    """Ends a generation; tells whether it was live."""
    request = generation_pb2.AbortGenerationRequest(request_id=request_id)
    answer = generation_pb2.AbortGenerationResponse
    return Call(f"{GENERATION}/AbortGeneration", request, answer, lambda response: response.found)


def model(name: str | None) -> Call[model_pb2.ModelInfo]:
    """Describes a model."""
    request = model_pb2.GetModelRequest(model=name or "")
    answer = model_pb2.GetModelResponse
    return Call(f"{MODEL}/GetModel", request, answer, lambda response: response.model)


def tokenize(
    text: str | None,
    token_ids: Iterable[int] | None,
    messages: Iterable[Mapping[str, str]] | None,
    options: PromptOptions,
) -> Call[tuple[int, ...]]:
    """The tokens that a generation would start from. Raises TypeError for bad options."""
    request = tokenize_request_from(text, token_ids, messages, options)
    answer = model_pb2.TokenizeResponse
    return Call(f"{MODEL}/Tokenize", request, answer, lambda response: tuple(response.token_ids))


def detokenize(
    token_ids: Iterable[int], skip_special_tokens: bool | None, model: str | None
) -> Call[str]:
    """The text of tokens."""
    request = model_pb2.DetokenizeRequest(
        token_ids=token_ids, skip_special_tokens=skip_special_tokens, model=model or ""
    )
    answer = model_pb2.DetokenizeResponse
    return Call(f"{MODEL}/Detokenize", request, answer, lambda response: response.text)


def server_info() -> Call[model_pb2.ServerInfo]:
    """The server now."""
    request, answer = model_pb2.GetServerInfoRequest(), model_pb2.GetServerInfoResponse
    return Call(f"{MODEL}/GetServerInfo", request, answer, lambda response: response.info)


def watch_server_info(interval_s: float | None) -> Call[model_pb2.ServerInfo]:
    """The server now and then at an interval. Raises ValueError for a bad interval."""
    request = model_pb2.WatchServerInfoRequest()
    if interval_s is not None:
        request.interval.CopyFrom(duration("interval_s", interval_s))
    answer = model_pb2.WatchServerInfoResponse
    return Call(f"{MODEL}/WatchServerInfo", request, answer, lambda response: response.info)


def drain(timeout_s: float | None) -> Call[admin_pb2.DrainResponse]:
    """Refuses new requests and waits for the live ones. Raises ValueError for a bad timeout."""
    request = admin_pb2.DrainRequest()
    limit_s = time_limit("timeout_s", timeout_s)
    if limit_s is not None:
        request.timeout.CopyFrom(duration("timeout_s", limit_s))
    answer = admin_pb2.DrainResponse
    return Call(f"{ADMIN}/Drain", request, answer, lambda response: response)


def no_drain(error: Unsupported) -> CallFailed:
    """The same error, and where to call where gRPC itself says that there is no such call."""
    if error.reason:
        return error
    return failure(error.code, f"{error.message} (drain is for the server's admin address)")
