"""One answer of a daemon: the call, what came of it so far, and its JSON document.

Knows how flags become options of a request. Leaves conversations to `conversation.py` and looks to
`shown.py`.

Invariant: an `Answer` holds exactly the events that were shown, also where the call broke off.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specd_client import (
    CallFailed,
    Client,
    Delta,
    Finished,
    NotReady,
    Overloaded,
    SequenceFinished,
    Started,
)
from specd_client.events import Event, FinishReason
from specd_client.request import Options

from specd.cli.calling import credentials
from specd.cli.origins import Origins, Piece
from specd.cli.shown import Screen, figures

# A daemon that streams answers this in a millisecond; without an answer the text goes uncoloured.
DETOKENIZE_LIMIT_S = 5.0
# Else a call shares the connection of the one before, which may be waiting before it tries a daemon
# again that was not there.
_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
# What a user should know of an answer that ended by itself.
ENDINGS = {
    FinishReason.MAX_TOKENS: "cut at --max-new-tokens",
    FinishReason.CONTEXT_LENGTH: "cut: the context is full",
    FinishReason.ABORTED: "the daemon ended the answer",
}


@dataclass(slots=True)
class Answer:
    """What a stream has told. Times are of the monotonic clock; 0 before the first text."""

    events: list[Event] = field(default_factory=list)
    first_s: float = 0.0
    last_s: float = 0.0

    def add(self, event: Event) -> None:
        """Take the next event."""
        self.last_s = time.monotonic()
        if isinstance(event, Delta) and not self.first_s:
            self.first_s = self.last_s
        self.events.append(event)

    @property
    def deltas(self) -> list[Delta]:
        return [event for event in self.events if isinstance(event, Delta)]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended; None where it did not come to its end."""
        ends = [event for event in self.events if isinstance(event, SequenceFinished)]
        return ends[0].finish_reason if ends else None

    @property
    def figures(self) -> str:
        """A line of figures, empty where the answer did not come to its end."""
        ends = [event for event in self.events if isinstance(event, Finished)]
        if not ends:
            return ""
        return figures(ends[0].speculation, ends[0].usage.completion_tokens, self._tokens_per_s)

    @property
    def _tokens_per_s(self) -> float | None:
        """Of the tokens behind the first delta: what comes before it is the prompt's time."""
        deltas = self.deltas
        if not deltas or self.last_s <= self.first_s:
            return None
        later = deltas[-1].completion_tokens - deltas[0].completion_tokens
        return later / (self.last_s - self.first_s) if later else None


def options_from(parsed: argparse.Namespace) -> Options:
    """The options that the flags of a request ask for."""
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
        return_steps=True if parsed.show_drafts else None,
    )


async def ask(
    parsed: argparse.Namespace, prompt: Mapping[str, Any], answer: Answer, screen: Screen | None
) -> None:
    """Stream an answer into `answer` and onto the screen, if any. Leaving it cancels the call.

    Raises:
        CallFailed: the daemon refused or failed.
        ProtocolError: it broke the rules of a stream.
        CredentialsUnusable: the files of the TLS flags.
    """
    started_s = time.monotonic()
    try:
        await _stream(parsed, prompt, answer, screen, timeout_s=parsed.timeout, retries=False)
    except (NotReady, Overloaded) as error:
        # A daemon that refuses may have room soon; nobody is waited for where nobody answers.
        if not error.reason or answer.events:
            raise
        pause_s = error.retry_after_s or 0.0
        left_s = None
        if parsed.timeout is not None:
            left_s = started_s + parsed.timeout - time.monotonic() - pause_s
            if left_s <= 0:
                raise
        await asyncio.sleep(pause_s)
        await _stream(parsed, prompt, answer, screen, timeout_s=left_s, retries=True)


async def _stream(
    parsed: argparse.Namespace,
    prompt: Mapping[str, Any],
    answer: Answer,
    screen: Screen | None,
    *,
    timeout_s: float | None,
    retries: bool,
) -> None:
    own = credentials(parsed)
    async with Client(
        parsed.address, credentials=own, retries=retries, channel_options=_OWN_CONNECTION
    ) as client:
        colours = _Colours(client) if screen is not None and screen.paints else None
        stream = client.stream(**prompt, timeout_s=timeout_s, **options_from(parsed))
        async with stream:
            async for event in stream:
                if isinstance(event, Delta) and screen is not None:
                    plain = [Piece(event.text, from_draft=False)]
                    screen.write(plain if colours is None else await colours.split(event))
                answer.add(event)
        if colours is not None and screen is not None and colours.failure:
            screen.note(f"the colours end before the text does: {colours.failure}")


class _Colours:
    """Splits deltas by origin while the daemon tells where tokens end."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._origins = Origins(self._detokenized)
        self.failure = ""

    async def split(self, delta: Delta) -> list[Piece]:
        """The text of a delta; after a failure in one piece."""
        if not self.failure:
            try:
                return await self._origins.split(delta)
            except CallFailed as error:
                self.failure = str(error)
        return [Piece(delta.text, from_draft=False)]

    async def _detokenized(self, token_ids: Sequence[int]) -> str:
        return await self._client.detokenize(token_ids, timeout_s=DETOKENIZE_LIMIT_S)


def document(answer: Answer) -> dict[str, Any]:
    """The JSON document of an answer, as far as it came."""
    deltas = answer.deltas
    found: dict[str, Any] = {
        "text": answer.text,
        "token_ids": [token for delta in deltas for token in delta.token_ids],
    }
    for event in answer.events:
        match event:
            case Started():
                found |= {"request_id": event.request_id, "model": event.model, "seed": event.seed}
            case SequenceFinished():
                found["finish_reason"] = event.finish_reason.name
            case Finished():
                found["usage"] = asdict(event.usage)
                found["speculation"] = asdict(event.speculation)
    if steps := [asdict(step) for delta in deltas for step in delta.steps]:
        found["steps"] = steps  # they come where --show-drafts asked for them
    return found
