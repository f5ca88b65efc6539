"""A storm: calls of every kind at random times, most of which end badly, beside some that stay.

Knows the public protocol and raw sockets. What is called, when and how it leaves is drawn from a
fixed seed; how far each has come by then is up to the machine.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from specd_client import CallFailed, Client, DuplicateRequest, Finished
from specd_client.errors import error_from
from specd_client.v1 import generation_pb2 as pb

from tests.e2e.calls import PROMPTS, stream_request, stubs
from tests.support.daemon import Daemon

GENERATE = "/specd.v1.GenerationService/StreamGenerate"
# What a call may end with besides OK.
ALLOWED = {
    *("CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "NOT_FOUND"),
    *("UNIMPLEMENTED", "ALREADY_EXISTS", "UNAVAILABLE"),
}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
BAD_PARTS: tuple[dict[str, Any], ...] = (
    {"sampling": {"temperature": float("nan")}},
    {"stop": {"max_new_tokens": 0}},
    {"input": {}},
    {"input": {"tokens": {"ids": [1 << 31]}}},
    {"model": "no such model"},
    {"structure": {"regex": "a*"}},
    {"input": {"text": "x" * 40_000}},
)


class Storm:
    """One storm after another against a daemon that nobody else uses."""

    def __init__(self, daemon: Daemon, client: Client) -> None:
        """client: one without retries."""
        self.ends: Counter[str] = Counter()
        self._daemon = daemon
        self._client = client
        self._random = random.Random(7)
        self._num_named = 0
        self.ways: tuple[tuple[int, Callable[[], Awaitable[str]]], ...] = (
            (5, self._read_all), (2, self._unary), (4, self._cancel), (4, self._deadline),
            (3, self._disconnect), (2, self._abort), (2, self._never_read), (2, self._twice),
            (2, self._refused), (2, self._garbage_message), (2, self._garbage_connection),
            (1, self._unknown_method), (1, self._ask),
        )  # fmt: skip

    async def blow(self, num_calls: int, seconds: float) -> None:
        """Make so many calls, spread over so long. Raises AssertionError for a wrong end."""
        weights = [weight for weight, _ in self.ways]
        async with asyncio.TaskGroup() as tasks:
            for _ in range(num_calls):
                (way,) = self._random.choices([way for _, way in self.ways], weights)
                tasks.create_task(self._count(way))
                await asyncio.sleep(self._random.expovariate(num_calls / seconds))

    async def _count(self, way: Callable[[], Awaitable[str]]) -> None:
        try:
            end = await way()
        except CallFailed as error:
            end = error.code.name
        except grpc.aio.AioRpcError as error:
            end = error.code().name
        assert end in ALLOWED | {"OK", "left"}, f"{way.__name__} ended with {end}"
        self.ends[f"{way.__name__} {end}"] += 1

    def _options(self) -> dict[str, Any]:
        choose = self._random
        return {
            "max_new_tokens": choose.randrange(1, 120),
            "temperature": choose.choice((0.0, 0.7, 1.5)),
            "drafters": choose.choice(([], ["ngram"])),
            "ignore_eos": True,
        }

    def _stream(self, **options: Any) -> Any:
        prompt = self._random.choice(PROMPTS) * self._random.choice((1, 1, 1, 4))
        return self._client.stream(prompt, **{**self._options(), **options})

    async def _read_all(self) -> str:
        events = [event async for event in self._stream()]
        assert sum(isinstance(event, Finished) for event in events) == 1
        return "OK"

    async def _unary(self) -> str:
        async with stubs(self._daemon.address) as raw:
            await raw.generation.Generate(_unary_request(self._random.randrange(1, 60)))
        return "OK"

    async def _cancel(self) -> str:
        num_events = self._random.randrange(5)
        async with self._stream() as stream:
            async for _ in stream:
                if num_events == 0:
                    return "left"
                num_events -= 1
        return "OK"

    async def _deadline(self) -> str:
        async for _ in self._stream(timeout_s=self._random.uniform(0.0005, 0.2)):
            pass
        return "OK"

    async def _disconnect(self) -> str:
        """Its whole connection goes, in the middle of several calls."""
        async with Client(self._daemon.address, retries=False) as own:
            streams = [own.stream("x" * n, **self._options()) for n in range(1, 4)]
            await anext(streams[0])
        return "left"

    async def _abort(self) -> str:
        name = self._name()
        stream = self._stream(request_id=name)
        events = [await anext(stream)]
        await self._client.abort(name)
        events += [event async for event in stream]
        assert sum(isinstance(event, Finished) for event in events) == 1
        return "OK"

    async def _never_read(self) -> str:
        stream = self._stream(max_new_tokens=400)
        await asyncio.sleep(self._random.uniform(0, 1))
        stream.cancel()
        return "left"

    async def _twice(self) -> str:
        """Two with one id: at least one of them is served."""
        name = self._name()
        first, second = self._stream(request_id=name), self._stream(request_id=name)
        ends = await asyncio.gather(_drained(first), _drained(second))
        failures = [end for end in ends if end is not None]
        for failure in failures:
            if not isinstance(failure, DuplicateRequest):
                raise failure
        assert len(failures) < 2
        return "OK"

    async def _refused(self) -> str:
        async with stubs(self._daemon.address) as raw:
            call = raw.generation.StreamGenerate(stream_request(**self._random.choice(BAD_PARTS)))
            try:
                await call.read()
            except grpc.aio.AioRpcError as error:
                assert error_from(error).reason, "a refusal without a reason"
                raise
        raise AssertionError("bad input was served")

    async def _garbage_message(self) -> str:
        async with grpc.aio.insecure_channel(self._daemon.address) as channel:
            call = channel.unary_stream(GENERATE)
            await call(self._random.randbytes(self._random.randrange(1, 300))).read()
        return "OK"

    async def _garbage_connection(self) -> str:
        """Bytes that are no HTTP/2, or begin as if they were."""
        host, _, port = self._daemon.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        start = self._random.choice((b"", PREFACE, b"GET / HTTP/1.1\r\n\r\n"))
        writer.write(start + self._random.randbytes(200))
        await asyncio.sleep(self._random.uniform(0, 0.2))
        writer.close()
        return "left"

    async def _unknown_method(self) -> str:
        async with grpc.aio.insecure_channel(self._daemon.address) as channel:
            await channel.unary_unary(f"{GENERATE}Not")(b"")
        return "OK"

    async def _ask(self) -> str:
        await self._client.server_info()
        return "OK"

    def _name(self) -> str:
        self._num_named += 1
        return f"storm-{self._num_named}"


async def _drained(stream: Any) -> CallFailed | None:
    """The error that a stream ends with."""
    try:
        async for _ in stream:
            pass
    except CallFailed as error:
        return error
    return None


def _unary_request(max_new_tokens: int) -> Any:
    return pb.GenerateRequest(input={"text": PROMPTS[0]}, stop={"max_new_tokens": max_new_tokens})
