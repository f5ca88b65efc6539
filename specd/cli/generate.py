"""`specd generate`: one prompt to a running daemon, the answer to stdout as it comes."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from specd_client import CallFailed, ProtocolError

from specd.cli.answer import Answer, ask, document
from specd.cli.shown import Screen

_FAILED = 1


def run(parsed: argparse.Namespace) -> int:
    """Stream an answer; returns the exit status."""
    screen = Screen(show_drafts=parsed.show_drafts)
    answer = Answer()
    screen.legend()
    try:
        asyncio.run(ask(parsed, _prompt(parsed), answer, screen))
    except (CallFailed, ProtocolError) as error:
        screen.error(str(error))
        if parsed.json:
            print(json.dumps({"error": str(error)}))
        return _FAILED
    screen.end_line()
    if parsed.show_drafts:
        screen.note(answer.figures)
    if parsed.json:
        print(json.dumps(document(answer)))
    return 0


def _prompt(parsed: argparse.Namespace) -> dict[str, Any]:
    if not parsed.chat:
        return {"text": parsed.text}
    system = [{"role": "system", "content": parsed.system}] if parsed.system is not None else []
    return {"messages": [*system, {"role": "user", "content": parsed.text}]}
