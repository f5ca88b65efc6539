"""`specd generate`: one prompt to a running daemon, the answer to stdout as it comes."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from specd_client import FinishReason, SpecdClientError

from specd.cli.answer import ENDINGS, Answer, ask, document
from specd.cli.calling import sentence
from specd.cli.shown import Screen

_FAILED, _INTERRUPTED = 1, 130


def run(parsed: argparse.Namespace) -> int:
    """Stream an answer; returns the exit status."""
    screen = Screen(show_drafts=parsed.show_drafts)
    answer = Answer()
    screen.legend()
    try:
        asyncio.run(ask(parsed, _prompt(parsed), answer, screen))
    except KeyboardInterrupt:
        screen.error("interrupted")
        return _INTERRUPTED
    except SpecdClientError as error:
        message = sentence(error, parsed, began=bool(answer.events))
        screen.error(message)
        if parsed.json:
            print(json.dumps({"error": message}))
        return _FAILED
    screen.end_line()
    status = _told_ending(answer.finish_reason, screen)
    if parsed.show_drafts:
        screen.note(answer.figures)
    if parsed.json:
        print(json.dumps(document(answer)))
    return status


def _told_ending(reason: FinishReason | None, screen: Screen) -> int:
    """Say where an answer is less than was asked for; returns the exit status."""
    if reason is FinishReason.ABORTED:
        screen.error(ENDINGS[reason])
        return _FAILED
    if reason is FinishReason.CONTEXT_LENGTH:
        screen.note(f"[{ENDINGS[reason]}]")
    return 0


def _prompt(parsed: argparse.Namespace) -> dict[str, Any]:
    if not parsed.chat:
        return {"text": parsed.text}
    system = [{"role": "system", "content": parsed.system}] if parsed.system is not None else []
    return {"messages": [*system, {"role": "user", "content": parsed.text}]}
