"""`specd generate`: one prompt to a running daemon, the answer to stdout as it comes."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

from specd_client import Client, FinishReason, SpecdClientError

from specd.cli.answer import ENDINGS, Answer, ask, document
from specd.cli.calling import credentials, sentence
from specd.cli.logprob_table import show_logprobs
from specd.cli.shown import Screen

_FAILED, _INTERRUPTED = 1, 130


def run(parsed: argparse.Namespace) -> int:
    """Stream an answer; returns the exit status."""
    screen = Screen(show_drafts=parsed.show_drafts)
    answer = Answer()
    screen.legend()
    try:
        asyncio.run(_ask(parsed, answer, screen))
    except KeyboardInterrupt:
        screen.error("interrupted")
        return _INTERRUPTED
    except SpecdClientError as error:
        message = sentence(error, parsed, began=bool(answer.events))
        screen.error(message)
        if parsed.json:
            print(json.dumps({"error": message}))
        return _FAILED
    status = _told_endings(answer, screen)
    if parsed.show_drafts:
        screen.note(answer.figures)
    if parsed.json:
        print(json.dumps(document(answer)))
    return status


async def _ask(parsed: argparse.Namespace, answer: Answer, screen: Screen) -> None:
    """Show the answer and, to people, its log probabilities. Raises as `ask` does."""
    await ask(parsed, _prompt(parsed), answer, screen)
    screen.end_line()
    if not parsed.json and (parsed.top_logprobs, parsed.prompt_logprobs) != (None, None):
        own = credentials(parsed)
        async with Client(parsed.address, credentials=own, retries=False) as client:
            await show_logprobs(answer, client, screen)


def _told_endings(answer: Answer, screen: Screen) -> int:
    """Say where an answer is less than was asked for; returns the exit status."""
    reasons = set(answer.ends.values())
    if FinishReason.ABORTED in reasons:
        screen.error(ENDINGS[FinishReason.ABORTED])
        return _FAILED
    if FinishReason.CONTEXT_LENGTH in reasons:
        screen.note(f"[{ENDINGS[FinishReason.CONTEXT_LENGTH]}]")
    return 0


def _prompt(parsed: argparse.Namespace) -> dict[str, Any]:
    if not parsed.chat:
        return {"text": parsed.text}
    system = [{"role": "system", "content": parsed.system}] if parsed.system is not None else []
    return {"messages": [*system, {"role": "user", "content": parsed.text}]}
