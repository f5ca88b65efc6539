"""The driver of the Python client: does one action of clients/conformance, tells what it saw.

Knows the public API alone; judges nothing. The protocol is in clients/conformance/README.md.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, TypeGuard

from specd_client import (
    CallFailed,
    Client,
    Completion,
    Delta,
    Event,
    Finished,
    GeneratedSequence,
    Overloaded,
    SequenceFinished,
    Started,
)

Json = dict[str, Any]
HELD = ("running", "waiting", "pages_used", "slots_used", "drafter_sessions")
TYPES = {
    Started: "started",
    Delta: "delta",
    SequenceFinished: "sequence_finished",
    Finished: "finished",
}
PAUSE_S = 0.01


def asked(prompt: Json, options: Json) -> Json:
    """What a call of the client takes; JSON has neither large integers nor integers as keys."""
    seed = {"seed": int(options["seed"])} if "seed" in options else {}
    bias = {int(token_id): value for token_id, value in options.get("logit_bias", {}).items()}
    return prompt | options | seed | ({"logit_bias": bias} if bias else {})


def error_seen(error: CallFailed) -> Json:
    """An error as the protocol of drivers tells it."""
    resource = error.resource and dict(zip(("kind", "name"), error.resource, strict=True))
    retry_after_s = error.retry_after_s
    return {
        "kind": type(error).__name__,
        "code": error.code.name,
        "reason": error.reason,
        "message": error.message,
        "metadata": dict(error.metadata),
        "field_violations": [
            {"field": item.field, "description": item.description}
            for item in error.field_violations
        ],
        "retry_after_ms": None if retry_after_s is None else round(retry_after_s * 1000),
        "resource": resource,
    }


def sequence_seen(
    deltas: Sequence[Delta] | Sequence[GeneratedSequence],
    end: SequenceFinished | GeneratedSequence,
) -> Json:
    """A sequence as the protocol of drivers tells it, from events or whole."""
    return {
        "text": "".join(delta.text for delta in deltas),
        "token_ids": [token_id for delta in deltas for token_id in delta.token_ids],
        "logprobs": [asdict(entry) for delta in deltas for entry in delta.logprobs],
        "steps": [asdict(step) for delta in deltas for step in delta.steps],
        "finish_reason": end.finish_reason.name,
        "matched_token_id": end.matched_token_id,
        "matched_stop_string": end.matched_stop_string,
    }


def answer_seen(
    started: Started, sequences: Sequence[Json], finished: Finished | Completion
) -> Json:
    """An answer as the protocol of drivers tells it, from events or from a completion."""
    total = finished.speculation.total
    return {
        "request_id": started.request_id,
        "model": started.model,
        "prompt_tokens": started.prompt_tokens,
        "seed": str(started.seed),
        "arithmetic_fingerprint": started.arithmetic_fingerprint,
        "sequence_seeds": [str(seed) for seed in started.sequence_seeds],
        "prompt_logprobs": [asdict(entry) for entry in started.prompt_logprobs],
        **sequences[0],
        "others": sequences[1:],
        "completion_tokens": finished.usage.completion_tokens,
        "verify_steps": total.verify_steps,
        "draft_tokens": total.draft_tokens,
        "accepted_draft_tokens": total.accepted_draft_tokens,
        "accepted_length_histogram": total.accepted_length_histogram,
    }


def order_seen(events: Iterable[Event]) -> list[str]:
    """The types of events, a run of deltas once."""
    return [name for name, _ in groupby(TYPES[type(event)] for event in events)]


async def stream(client: Client, parameters: Json, _: Json) -> Json:
    events = [event async for event in client.stream(**asked(**parameters))]
    started, finished = events[0], events[-1]
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    deltas = [event for event in events if isinstance(event, Delta)]
    ends = {event.sequence_index: event for event in events if isinstance(event, SequenceFinished)}
    sequences = [
        sequence_seen([delta for delta in deltas if delta.sequence_index == index], ends[index])
        for index in sorted(ends)
    ]
    return {
        "order": order_seen(events),
        "last_completion_tokens": deltas[-1].completion_tokens,
        "answer": answer_seen(started, sequences, finished),
    }


async def generate(client: Client, parameters: Json, _: Json) -> Json:
    answer = await client.generate(**asked(**parameters))
    sequences = [sequence_seen([sequence], sequence) for sequence in answer.sequences]
    return {"answer": answer_seen(answer.started, sequences, answer)}


async def cancel(client: Client, parameters: Json, _: Json) -> Json:
    request = asked(parameters["prompt"], parameters["options"])
    error = None
    if parameters["how"] == "leave":
        async for event in client.stream(**request):
            if isinstance(event, Delta):
                break
    else:
        stream = client.stream(**request)
        await to_first_delta(stream)
        stream.cancel()
        error = error_seen(await failure_of(rest(stream)))
    return {"error": error, "held": await held(client, parameters["within_ms"])}


async def deadline(client: Client, parameters: Json, _: Json) -> Json:
    request = asked(parameters["prompt"], parameters["options"])
    began_s = time.monotonic()
    timeout_s = parameters["timeout_ms"] / 1000
    error = await failure_of(rest(client.stream(**request, timeout_s=timeout_s)))
    return {
        "error": error_seen(error),
        "elapsed_ms": milliseconds_since(began_s),
        "held": await held(client, parameters["within_ms"]),
    }


async def overload(client: Client, parameters: Json, job: Json) -> Json:
    holding = asked(parameters["prompt"], parameters["holding"])
    request = asked(parameters["prompt"], parameters["options"])
    streams = [client.stream(**holding)]
    await anext(streams[0])
    streams.append(client.stream(**holding))
    await counted(client, running=1, waiting=1)
    async with Client(job["address"]) as patient:
        await patient.server_info()
        began_s = time.monotonic()
        late = asyncio.create_task(patient.generate(**request))
        await asyncio.sleep(0)  # lets it begin
        for _ in range(3):
            refused = await failure_of(client.generate(**request))
        for held_open in streams:
            held_open.cancel()
        answer = await late
    return {
        "refused": error_seen(refused),
        "late_completion_tokens": answer.usage.completion_tokens,
        "late_elapsed_ms": milliseconds_since(began_s),
    }


async def refusals(client: Client, parameters: Json, _: Json) -> Json:
    errors = [
        error_seen(await failure_of(client.generate(**asked(**request))))
        for request in parameters["requests"]
    ]
    return {"errors": errors}


async def abort(client: Client, parameters: Json, _: Json) -> Json:
    request = asked(**parameters)
    request_id = request["request_id"]
    stream = client.stream(**request)
    events = await to_first_delta(stream)
    duplicate = await failure_of(rest(client.stream(**request)))
    found = await client.abort(request_id)
    events += await rest(stream)
    sequence = events[-2]
    assert isinstance(sequence, SequenceFinished)
    return {
        "duplicate": error_seen(duplicate),
        "found": found,
        "order": order_seen(events),
        "finish_reason": sequence.finish_reason.name,
        "found_again": await client.abort(request_id),
        "empty": error_seen(await failure_of(client.abort(""))),
    }


async def inspect(client: Client, parameters: Json, _: Json) -> Json:
    model = await client.model()
    token_ids = await client.tokenize(parameters["text"])
    info = await client.server_info()
    num_reports = 0
    async for _report in client.watch_server_info(parameters["interval_ms"] / 1000):
        num_reports += 1
        if num_reports == parameters["reports"]:
            break
    return {
        "context_length": model.context_length,
        "vocab_size": model.vocab_size,
        "default_temperature": model.default_sampling.temperature,
        "has_chat_template": model.has_chat_template,
        "token_ids": token_ids,
        "text": await client.detokenize(token_ids),
        "drafters": list(info.drafters),
        "max_rows": info.limits.max_rows,
        "kernels": info.kernels,
        "weight_bytes": info.weight_bytes,
        "kv_bytes_per_position": info.kv_bytes_per_position,
        "running": info.counters.running,
        "reports": num_reports,
    }


async def drain(client: Client, parameters: Json, job: Json) -> Json:
    prompt, timeout_ms = parameters["prompt"], parameters["drain_timeout_ms"]
    streams: list[AsyncIterator[Event]] = []
    for options in parameters["options"]:
        streams.append(client.stream(**asked(prompt, options)))
        await counted(client, running=1, waiting=len(streams) - 1)
    async with Client(job["admin_address"], retries=False) as operator:
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        draining = asyncio.create_task(operator.drain(timeout_s))
        refused = None
        while refused is None:
            try:
                await client.generate(**prompt, max_new_tokens=1)
            except Overloaded:
                await asyncio.sleep(PAUSE_S)  # it does not drain yet
            except CallFailed as error:
                refused = error
        ends = [(await rest(stream))[-2] for stream in streams]
        drained, again = await draining, await operator.drain(timeout_s)
    return {
        "refused": error_seen(refused),
        "finish_reasons": [end.finish_reason.name for end in ends if has_ended(end)],
        "drained": {"finished": drained.finished, "aborted": drained.aborted},
        "drained_again": {"finished": again.finished, "aborted": again.aborted},
    }


def has_ended(event: Event) -> TypeGuard[SequenceFinished]:
    return isinstance(event, SequenceFinished)


async def rest(stream: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in stream]


async def to_first_delta(stream: AsyncIterator[Event]) -> list[Event]:
    events = []
    async for event in stream:
        events.append(event)
        if isinstance(event, Delta):
            break
    return events


async def failure_of(call: Awaitable[object]) -> CallFailed:
    """The error of a call that has to fail."""
    try:
        answer = await call
    except CallFailed as error:
        return error
    raise RuntimeError(f"this has to fail, and gave {answer}")


async def counted(client: Client, **counters: int) -> None:
    """Waits until the server counts these values."""
    while True:
        now = (await client.server_info()).counters
        if all(getattr(now, name) == value for name, value in counters.items()):
            return
        await asyncio.sleep(PAUSE_S)


async def held(client: Client, within_ms: int) -> dict[str, int]:
    """What the server still holds, at the latest after within_ms."""
    began_s = time.monotonic()
    while True:
        now = (await client.server_info()).counters
        counters = {name: getattr(now, name) for name in HELD}
        if not any(counters.values()) or milliseconds_since(began_s) > within_ms:
            return counters
        await asyncio.sleep(PAUSE_S)


def milliseconds_since(began_s: float) -> int:
    return round((time.monotonic() - began_s) * 1000)


Action = Callable[[Client, Json, Json], Awaitable[Json]]
ACTIONS: Mapping[str, Action] = {
    action.__name__: action
    for action in (
        *(stream, generate, cancel, deadline, overload),
        *(refusals, abort, inspect, drain),
    )
}


async def main() -> None:
    job = json.load(sys.stdin)
    async with Client(job["address"], retries=False) as client:
        seen = await ACTIONS[job["action"]](client, job["parameters"], job)
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
