"""One answer of a daemon: the call, what came of it so far, and its JSON document.

Knows how flags become options of a request. Leaves conversations to `conversation.py` and looks to
`shown.py`.

Invariant: an `Answer` holds exactly the events that went to the screen, also where the call broke
off.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from specd_client import (
    CallFailed,
    Client,
    Delta,
    Finished,
    NotReady,
    Overloaded,
    SequenceFinished,
    Started,
    TokenLogprob,
)
from specd_client.events import Event, FinishReason
from specd_client.request import Options

from specd.cli.calling import credentials
from specd.cli.origins import Origins, Piece
from specd.cli.sampling_flags import sampling_options
from specd.cli.shown import Screen, Turns, figures

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
    def seeds(self) -> tuple[int, ...]:
        """One per sequence; none before the daemon told them."""
        return next((e.sequence_seeds for e in self.events if isinstance(e, Started)), ())

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob, ...]:
        return next((e.prompt_logprobs for e in self.events if isinstance(e, Started)), ())

    def deltas(self, index: int = 0) -> list[Delta]:
        """Those of a sequence."""
        deltas = [event for event in self.events if isinstance(event, Delta)]
        return [delta for delta in deltas if delta.sequence_index == index]

    @property
    def text(self) -> str:
        """Of the first sequence."""
        return "".join(delta.text for delta in self.deltas())

    @property
    def ends(self) -> dict[int, FinishReason]:
        """Why sequences ended, of those that came to their end."""
        ends = [event for event in self.events if isinstance(event, SequenceFinished)]
        return {end.sequence_index: end.finish_reason for end in ends}

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the first sequence ended; None where it did not come to its end."""
        return self.ends.get(0)

    @property
    def figures(self) -> str:
        """A line of figures, empty where the answer did not come to its end."""
        ends = [event for event in self.events if isinstance(event, Finished)]
        if not ends:
            return ""
        num_tokens = ends[0].usage.completion_tokens
        return figures(ends[0].speculation, num_tokens, self._tokens_per_s(num_tokens))

    def _tokens_per_s(self, num_tokens: int) -> float | None:
        """Of the tokens behind the first delta: what comes before it is the prompt's time."""
        first = next((event for event in self.events if isinstance(event, Delta)), None)
        if first is None or self.last_s <= self.first_s:
            return None
        later = num_tokens - first.completion_tokens
        return later / (self.last_s - self.first_s) if later else None


def options_from(parsed: argparse.Namespace) -> Options:
    """The options that the flags of a request ask for."""
    return cast(Options, sampling_options(parsed)) | Options(
        speculation=False if parsed.no_speculation else None,
        drafters=parsed.drafter,
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
        stage = None if screen is None else _Stage(client, screen)
        stream = client.stream(**prompt, timeout_s=timeout_s, **options_from(parsed))
        async with stream:
            async for event in stream:
                if stage is not None:
                    await stage.show(event)
                answer.add(event)
        if stage is not None and screen is not None and stage.failure:
            screen.note(f"the colours end before the text does: {stage.failure}")


class _Stage:
    """Brings events onto a screen; in colours while the daemon tells where tokens end."""

    def __init__(self, client: Client, screen: Screen) -> None:
        self._client = client
        self._turns = Turns(screen)
        self._paints = screen.paints
        self._origins = defaultdict[int, Origins](lambda: Origins(self._detokenized))
        self.failure = ""

    async def show(self, event: Event) -> None:
        """Show what an event brings, if anything."""
        match event:
            case Started():
                self._turns.begin(event.sequence_seeds)
            case Delta():
                self._turns.write(event.sequence_index, await self._pieces(event))
            case SequenceFinished():
                self._turns.end(event.sequence_index)

    async def _pieces(self, delta: Delta) -> list[Piece]:
        """The text of a delta by its origin; without colours and after a failure in one piece."""
        if self._paints and not self.failure:
            try:
                return await self._origins[delta.sequence_index].split(delta)
            except CallFailed as error:
                self.failure = str(error)
        return [Piece(delta.text, from_draft=False)]

    async def _detokenized(self, token_ids: Sequence[int]) -> str:
        return await self._client.detokenize(token_ids, timeout_s=DETOKENIZE_LIMIT_S)


def document(answer: Answer) -> dict[str, Any]:
    """The JSON document of an answer, as far as it came: its first sequence, and all of several."""
    found = _sequence_document(answer, 0)
    for event in answer.events:
        match event:
            case Started():
                found |= {"request_id": event.request_id, "model": event.model, "seed": event.seed}
            case Finished():
                found["usage"] = asdict(event.usage)
                found["speculation"] = asdict(event.speculation)
    if answer.prompt_logprobs:
        found["prompt_logprobs"] = [asdict(entry) for entry in answer.prompt_logprobs]
    if len(answer.seeds) > 1:
        found["sequences"] = [
            {"seed": seed} | _sequence_document(answer, index)
            for index, seed in enumerate(answer.seeds)
        ]
    return found


def _sequence_document(answer: Answer, index: int) -> dict[str, Any]:
    deltas = answer.deltas(index)
    found: dict[str, Any] = {
        "text": "".join(delta.text for delta in deltas),
        "token_ids": [token for delta in deltas for token in delta.token_ids],
    }
    if index in answer.ends:
        found["finish_reason"] = answer.ends[index].name
    # These come where flags ask for them.
    for name in ("logprobs", "steps"):
        if entries := [asdict(entry) for delta in deltas for entry in getattr(delta, name)]:
            found[name] = entries
    return found
