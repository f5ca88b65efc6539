"""`specd generate`: one prompt to a running daemon, the answer to stdout as it comes."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
from dataclasses import asdict
from typing import Any

from specd_client import (
    CallFailed,
    Client,
    Delta,
    Finished,
    ProtocolError,
    SequenceFinished,
    Started,
)
from specd_client.events import Event
from specd_client.request import Options

_FAILED = 1


def run(parsed: argparse.Namespace) -> int:
    """Stream an answer; returns the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that cannot show every character
        sys.stdout.reconfigure(errors="replace")
    try:
        return asyncio.run(_stream(parsed))
    except (CallFailed, ProtocolError) as error:
        print(f"specd: {error}", file=sys.stderr)
        if parsed.json:
            print(json.dumps({"error": str(error)}))
        return _FAILED


async def _stream(parsed: argparse.Namespace) -> int:
    events: list[Event] = []
    async with Client(parsed.address) as client:
        stream = client.stream(**_prompt(parsed), timeout_s=parsed.timeout, **_options(parsed))
        async with stream:
            async for event in stream:
                events.append(event)
                if isinstance(event, Delta):
                    print(event.text, end="", flush=True)
    print()
    if parsed.json:
        print(json.dumps(document(events)))
    return 0


def _prompt(parsed: argparse.Namespace) -> dict[str, Any]:
    if not parsed.chat:
        return {"text": parsed.text}
    system = [{"role": "system", "content": parsed.system}] if parsed.system is not None else []
    return {"messages": [*system, {"role": "user", "content": parsed.text}]}


def _options(parsed: argparse.Namespace) -> Options:
    return Options(
        max_new_tokens=parsed.max_new_tokens,
        temperature=parsed.temperature,
        top_k=parsed.top_k,
        top_p=parsed.top_p,
        min_p=parsed.min_p,
        seed=parsed.seed,
        stop_strings=parsed.stop,
        ignore_eos=True if parsed.ignore_eos else None,
        speculation=False if parsed.no_speculation else None,
        drafters=parsed.drafter,
        max_draft_tokens=parsed.max_draft_tokens,
        return_token_ids=True,
    )


def document(events: list[Event]) -> dict[str, Any]:
    """The JSON document of a whole stream."""
    deltas = [event for event in events if isinstance(event, Delta)]
    found: dict[str, Any] = {
        "text": "".join(delta.text for delta in deltas),
        "token_ids": [token for delta in deltas for token in delta.token_ids],
    }
    for event in events:
        match event:
            case Started():
                found |= {"request_id": event.request_id, "model": event.model, "seed": event.seed}
            case SequenceFinished():
                found["finish_reason"] = event.finish_reason.name
            case Finished():
                found["usage"] = asdict(event.usage)
                found["speculation"] = asdict(event.speculation)
    return found
