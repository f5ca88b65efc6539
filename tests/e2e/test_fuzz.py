"""Whatever bytes a client sends, it gets an answer or a documented refusal, and the daemon lives.

SPECD_FUZZ_EXAMPLES says how many requests each test sends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st
from specd_client.v1 import generation_pb2 as pb
from specd_client.v1 import model_pb2

from benchmarks.toy_gguf import build_toy_model
from specd.server.status import DOMAIN, TABLE
from tests.support.daemon import Daemon, daemon_process
from tests.support.fuzzing import fuzzed
from tests.support.wire_fuzz import broken, messages, mutated, senseless

# Ends every generation soon, however many tokens it asks for.
CONTEXT_LENGTH = 64
HANGS_AFTER_S = 20.0
DOCUMENTED = {row.reason: row.code for row in TABLE.values()}
# A sound model has finite logits, and no step of it fails.
FAULTS_OF_OURS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}


# Penalties, bans and several sequences exclude a structure in parts; each has a request of its own.
_CHOSEN = {
    "sampling": {
        **{"temperature": 0.5, "seed": 1, "num_sequences": 2, "logit_bias": {511: -1.0}},
        **{"repetition_penalty": 1.25, "presence_penalty": 0.5, "frequency_penalty": 0.25},
    },
    "stop": {"max_new_tokens": 3, "min_new_tokens": 2, "stop_strings": ["xyz"]},
    "output": {"token_ids": True, "top_logprobs": 2, "prompt_logprobs": 1, "logprob_basis": 2},
}
_STRUCTURED = {
    "sampling": {"temperature": 1.0, "seed": 1},
    "stop": {"max_new_tokens": 8, "stop_token_ids": [3]},
    "output": {"token_ids": True, "top_logprobs": 0},
    "structure": {"json_schema": '{"enum": ["port", 7]}'},
}


def _generation(kind: type[Any], parts: dict[str, Any]) -> Callable[[], Message]:
    return lambda: kind(
        request_id="fuzz",
        input={"text": "The ferry"},
        speculation={"mode": 2, "drafters": ["ngram"], "draft_budget": {"nanos": 10**7}},
        **parts,
    )


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC: how to make a good request, and what comes back."""

    name: str
    path: str
    good: Callable[[], Message]
    response: type[Message]
    streams: bool = False


_G, _M = "/specd.v1.GenerationService/", "/specd.v1.ModelService/"
METHODS = {
    method.name: method
    for method in (
        *(
            Method(
                f"StreamGenerate{name}",
                f"{_G}StreamGenerate",
                _generation(pb.StreamGenerateRequest, parts),
                pb.StreamGenerateResponse,
                streams=True,
            )
            for name, parts in (("", _CHOSEN), (" structured", _STRUCTURED))
        ),
        *(
            Method(
                f"Generate{name}",
                f"{_G}Generate",
                _generation(pb.GenerateRequest, parts),
                pb.GenerateResponse,
            )
            for name, parts in (("", _CHOSEN), (" structured", _STRUCTURED))
        ),
        Method(
            "AbortGeneration",
            f"{_G}AbortGeneration",
            lambda: pb.AbortGenerationRequest(request_id="nobody"),
            pb.AbortGenerationResponse,
        ),
        Method(
            "Tokenize",
            f"{_M}Tokenize",
            lambda: model_pb2.TokenizeRequest(input={"text": "a"}),
            model_pb2.TokenizeResponse,
        ),
        Method(
            "Detokenize",
            f"{_M}Detokenize",
            lambda: model_pb2.DetokenizeRequest(token_ids=[1, 2, 511]),
            model_pb2.DetokenizeResponse,
        ),
        Method("GetModel", f"{_M}GetModel", model_pb2.GetModelRequest, model_pb2.GetModelResponse),
        Method(
            "GetServerInfo",
            f"{_M}GetServerInfo",
            model_pb2.GetServerInfoRequest,
            model_pb2.GetServerInfoResponse,
        ),
        Method(
            "WatchServerInfo",
            f"{_M}WatchServerInfo",
            lambda: model_pb2.WatchServerInfoRequest(interval={"seconds": 1}),
            model_pb2.WatchServerInfoResponse,
            streams=True,
        ),
    )
}

_OFTEN = [name for name in METHODS if "Generate" in name] * 2
NAMES = st.shared(st.sampled_from(list(METHODS) + _OFTEN), key="name")


@dataclass(frozen=True, slots=True)
class Wire:
    """A daemon, and a channel to it that sends bytes as they are."""

    daemon: Daemon
    channel: grpc.Channel

    def call(self, method: Method, raw: bytes) -> list[Any] | grpc.RpcError:
        """The messages of an answer that has ended well, or its error. A watch is left early."""
        make = self.channel.unary_stream if method.streams else self.channel.unary_unary
        stub: Any = make(method.path, bytes, method.response.FromString)
        try:
            if not method.streams:
                return [stub(raw, timeout=HANGS_AFTER_S)]
            stream = stub(raw, timeout=HANGS_AFTER_S)
            if "Watch" in method.path:
                first = next(stream)
                stream.cancel()
                return [first]
            return list(stream)
        except grpc.RpcError as error:
            return error

    def check(self, method: Method, raw: bytes) -> list[Any] | None:
        """Send it; a refusal must be a documented one. Returns the messages if it was none."""
        answer = self.call(method, raw)
        if isinstance(answer, list):
            return answer
        _check_refusal(answer)
        return None


def _check_refusal(error: Any) -> None:
    code = error.code()
    assert code not in FAULTS_OF_OURS, error.details()
    trailers = dict(error.trailing_metadata() or ())
    status = Status.FromString(trailers["grpc-status-details-bin"])
    assert (status.code, status.message) == (code.value[0], error.details())
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.domain, DOCUMENTED[info.reason]) == (DOMAIN, code)
    assert status.message


@pytest.fixture(scope="module")
def wire(models: Path) -> Iterator[Wire]:
    path = models / "fuzzed.gguf"
    build_toy_model(path, context_length=CONTEXT_LENGTH)
    with daemon_process(path) as daemon:
        with grpc.insecure_channel(daemon.address, [("grpc.enable_retries", 0)]) as channel:
            yield Wire(daemon, channel)


@pytest.fixture(scope="module", autouse=True)
def check_the_daemon_is_unharmed(wire: Wire) -> Iterator[None]:
    """Afterwards it answers as it did before, holds nothing, and has logged nothing unexpected."""
    method = METHODS["Generate"]
    raw = method.good().SerializeToString()
    before = wire.check(method, raw)
    yield
    after = wire.check(method, raw)
    assert before and after
    assert after[0].sequences == before[0].sequences
    wire.daemon.wait_quiet()
    wire.daemon.check_log()


def _check_stream(answer: list[Any]) -> None:
    """A stream that ended well is a whole one."""
    kinds = [message.WhichOneof("event") for message in answer]
    assert (kinds[0], kinds[-1]) == ("started", "finished")
    assert set(kinds[1:-1]) <= {"delta", "sequence_finished"}
    num_sequences = len(answer[0].started.sequence_seeds)
    ends = [
        message.sequence_finished for message in answer if message.HasField("sequence_finished")
    ]
    assert sorted(end.sequence_index for end in ends) == list(range(num_sequences))
    usage = answer[-1].finished.usage
    assert num_sequences <= usage.completion_tokens
    assert usage.completion_tokens <= num_sequences * (CONTEXT_LENGTH - usage.prompt_tokens)
    deltas = [message.delta for message in answer if message.HasField("delta")]
    for index in range(num_sequences):
        counts = [delta.completion_tokens for delta in deltas if delta.sequence_index == index]
        assert counts == sorted(counts)
    for delta in deltas:
        ids = [entry.token_id for entry in delta.logprobs]
        assert not ids or not delta.token_ids or ids == list(delta.token_ids)


@given(name=NAMES, data=st.data())
@fuzzed(400)
def test_a_good_request_with_odd_fields_is_answered_or_refused(
    wire: Wire, name: str, data: st.DataObject
) -> None:
    method = METHODS[name]
    request = data.draw(mutated(method.good))
    answer = wire.check(method, request.SerializeToString())
    if answer is not None:
        assert not list(senseless(request)), "it says what nobody can honour"
    if answer is not None and name.startswith("StreamGenerate"):
        _check_stream(answer)


@given(name=NAMES, data=st.data())
@fuzzed(400)
def test_a_request_of_any_fields_is_answered_or_refused(
    wire: Wire, name: str, data: st.DataObject
) -> None:
    method = METHODS[name]
    request = data.draw(messages(method.good().DESCRIPTOR))
    if wire.check(method, request.SerializeToString()) is not None:
        assert not list(senseless(request)), "it says what nobody can honour"


@given(name=NAMES, data=st.data())
@fuzzed(400)
def test_broken_bytes_are_refused_or_answered_if_they_still_are_a_request(
    wire: Wire, name: str, data: st.DataObject
) -> None:
    method = METHODS[name]
    raw = data.draw(broken(mutated(method.good)))
    if wire.check(method, raw) is not None:
        understood = type(method.good()).FromString(raw)
        size = understood.ByteSize()
        understood.DiscardUnknownFields()
        assert understood.ByteSize() == size, "a field of no known number was dropped silently"
