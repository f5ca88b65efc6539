"""Calls of the end-to-end tests: raw stubs where the wire itself is the matter, and whole answers.

Knows the public protocol alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from specd_client import Client, Completion
from specd_client.v1 import generation_pb2 as pb
from specd_client.v1 import generation_pb2_grpc, model_pb2, model_pb2_grpc

PATIENCE_S = 30.0
PROMPT = "The ferry leaves the harbour at seven"
# Different lengths, so that rows of one step differ in everything.
PROMPTS = (
    PROMPT,
    "def count_passengers(deck):",
    "Nobody speaks. Nobody speaks. Nobody speaks. Nobody",
    '{"name": "ferry", "stops": [1, 2, 3]}',
    "x",
    "The captain counts the passengers twice, because the first count is always wrong. " * 3,
)
CONTEXT_LENGTH = 512  # of the standard toy


@dataclass(frozen=True, slots=True)
class Stubs:
    """Both services over one channel."""

    generation: Any
    model: Any
    channel: grpc.aio.Channel


@asynccontextmanager
async def stubs(address: str) -> AsyncIterator[Stubs]:
    """Stubs without any retries of their own."""
    async with grpc.aio.insecure_channel(address, [("grpc.enable_retries", 0)]) as channel:
        yield Stubs(
            generation_pb2_grpc.GenerationServiceStub(channel),
            model_pb2_grpc.ModelServiceStub(channel),
            channel,
        )


def stream_request(**parts: Any) -> pb.StreamGenerateRequest:
    """A valid request; `parts` replace whole fields of it."""
    fields: dict[str, Any] = {"input": {"text": PROMPT}, "stop": {"max_new_tokens": 4}}
    return pb.StreamGenerateRequest(**(fields | parts))


async def drafter_stats(client: Client, name: str) -> Any:
    """Counters of one drafter."""
    info = await client.server_info()
    return next(stats for stats in info.drafter_stats if stats.name == name)


async def wait_for(client: Client, **counters: int) -> None:
    """Wait until GetServerInfo shows these values."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            now = (await client.server_info()).counters
            if all(getattr(now, name) == value for name, value in counters.items()):
                return
            await asyncio.sleep(0.005)


async def quiet(client: Client) -> None:
    """Wait until no request holds anything."""
    await wait_for(client, running=0, waiting=0, pages_used=0, slots_used=0, drafter_sessions=0)


async def answer(
    client: Client, prompt: str | Sequence[int] = PROMPT, **options: Any
) -> Completion:
    """A whole answer with its tokens and steps."""
    form = {"text": prompt} if isinstance(prompt, str) else {"token_ids": prompt}
    options = {"return_token_ids": True, "return_steps": True} | options
    return await client.generate(**form, timeout_s=PATIENCE_S, **options)


async def detokenized(client: Client, token_ids: Sequence[int], **options: Any) -> str:
    """The text that the daemon itself makes of these ids."""
    stub = model_pb2_grpc.ModelServiceStub(client.channel)
    request = model_pb2.DetokenizeRequest(token_ids=token_ids, **options)
    return str((await stub.Detokenize(request)).text)


async def tokenized(client: Client, text: str) -> list[int]:
    """The ids that the daemon makes of a text."""
    stub = model_pb2_grpc.ModelServiceStub(client.channel)
    request = model_pb2.TokenizeRequest(input={"text": text})
    return list((await stub.Tokenize(request)).token_ids)


def check_sums(completion: Completion) -> None:
    """What the tallies of a whole answer promise."""
    total = completion.speculation.total
    histogram = total.accepted_length_histogram
    assert sum(histogram) == total.verify_steps
    assert sum(i * n for i, n in enumerate(histogram)) == total.accepted_draft_tokens
    # Where the end cuts the last run, the target's own token behind it is lost, and accepted
    # tokens behind the end are not counted.
    lost = total.accepted_draft_tokens + total.verify_steps - completion.usage.completion_tokens
    assert lost in {0, 1}
    assert len(completion.token_ids) == completion.usage.completion_tokens
    assert total.accepted_draft_tokens <= total.draft_tokens
    assert sum(step.draft_tokens for step in completion.steps) == total.draft_tokens
