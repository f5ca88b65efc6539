"""What a stream told, to the bit, and the first place where two of them differ.

Knows the events of the client; nothing of who asked or why. Log probabilities are kept as the bits
of their fp32 numbers, so that equal means equal.
Invariant: an answer that went through JSON equals itself.
"""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specd_client import (
    CallFailed,
    Client,
    DeadlineExceeded,
    Delta,
    Event,
    Finished,
    FinishReason,
    ProtocolError,
    SequenceFinished,
    Started,
)

from benchmarks.equality.company import Leave

PATIENCE_S = 900.0
# (token, bits of its log probability, rank, ((token, bits), ...)): of one position.
Score = tuple[Any, ...]


@dataclass(slots=True)
class Answer:
    """One sequence. finish: empty for one whose end nobody saw. matched: what ended it."""

    seed: int = 0
    num_prompt_tokens: int = 0
    prompt_scores: tuple[Score, ...] = ()
    token_ids: tuple[int, ...] = ()
    text: str = ""
    scores: tuple[Score, ...] = ()
    finish: str = ""
    matched: str = ""

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(told: Mapping[str, Any]) -> Answer:
        """Raises TypeError for what is no answer."""
        return Answer(**{name: _as_tuples(value) for name, value in told.items()})

    @property
    def is_whole(self) -> bool:
        """Whether it ended by itself."""
        return self.finish not in {"", FinishReason.ABORTED.name}

    def difference(self, plain: Answer) -> str | None:
        """The first thing that is not as in a plain answer; of one that was left, its beginning."""
        pairs = [
            ("prompt length", self.num_prompt_tokens, plain.num_prompt_tokens),
            ("seed", self.seed, plain.seed),
            *_items("prompt log probability", self.prompt_scores, plain.prompt_scores),
            *_items("token", self.token_ids, plain.token_ids),
            *_items("log probability", self.scores, plain.scores),
        ]
        if self.is_whole:
            pairs += [
                ("number of tokens", len(self.token_ids), len(plain.token_ids)),
                ("number of log probabilities", len(self.scores), len(plain.scores)),
                ("finish reason", self.finish, plain.finish),
                ("matched end", self.matched, plain.matched),
                ("text", self.text, plain.text),
            ]
        else:
            beyond = max(0, len(self.token_ids) - len(plain.token_ids))
            # What was held back of a character is shown as a replacement where a stream is ended.
            begun = self.text.rstrip("\ufffd")
            pairs += [
                ("tokens behind the end", beyond, 0),
                ("text", begun, plain.text[: len(begun)]),
            ]
        found = ((name, mine, its) for name, mine, its in pairs if mine != its)
        return next(
            (f"{name}: {_shown(mine)}, not {_shown(its)}" for name, mine, its in found), None
        )


@dataclass(slots=True)
class Heard:
    """All that one call told. error: why it failed. has_left: it was left on purpose."""

    started: Started | None = None
    answers: dict[int, Answer] = field(default_factory=dict)
    finished: Finished | None = None
    error: str | None = None
    has_left: bool = False

    @property
    def num_tokens(self) -> int:
        return sum(len(answer.token_ids) for answer in self.answers.values())

    @property
    def num_scores(self) -> int:
        """Log probabilities, those of alternatives and of prompts included."""
        scores = [
            score for one in self.answers.values() for score in (*one.prompt_scores, *one.scores)
        ]
        return sum(1 + len(score[-1]) for score in scores)

    def take(self, event: Event) -> None:
        """Add one event."""
        match event:
            case Started():
                self.started = event
            case Delta():
                answer = self._answer(event.sequence_index)
                answer.text += event.text
                answer.token_ids += event.token_ids
                answer.scores += tuple(map(_score, event.logprobs))
                if len(event.logprobs) != len(event.token_ids):
                    self.error = (
                        f"a delta with {len(event.token_ids)} tokens and "
                        f"{len(event.logprobs)} log probabilities"
                    )
            case SequenceFinished():
                answer = self._answer(event.sequence_index)
                answer.finish = event.finish_reason.name
                answer.matched = f"{event.matched_token_id} {event.matched_stop_string!r}"
            case Finished():
                self.finished = event

    def _answer(self, index: int) -> Answer:
        started = self.started
        assert started is not None, "the client checks the order of events"
        if index not in self.answers:
            seed = started.sequence_seeds[index]
            scores = tuple(map(_score, started.prompt_logprobs))
            self.answers[index] = Answer(seed, started.prompt_tokens, scores)
        return self.answers[index]


async def listen(
    client: Client,
    request: Mapping[str, Any],
    *,
    speaks: asyncio.Event | None = None,
    leave: Leave | None = None,
) -> Heard:
    """Make one call and hear it to its end, or to where it is left."""
    heard = Heard()
    limit_s = leave.deadline_s if leave and leave.deadline_s else PATIENCE_S
    try:
        async with client.stream(**request, timeout_s=limit_s) as stream:
            async for event in stream:
                heard.take(event)
                if speaks and isinstance(event, Delta):
                    speaks.set()
                if leave and not heard.has_left and heard.num_tokens >= leave.after_tokens:
                    await _leave(client, heard, leave)
                if heard.has_left and leave and leave.way == "cancel":
                    break
    except DeadlineExceeded as error:
        heard.has_left = leave is not None and leave.way == "deadline"
        heard.error = None if heard.has_left else str(error)
    except (CallFailed, ProtocolError) as error:
        heard.error = f"{type(error).__name__}: {error}"
    finally:
        if speaks:
            speaks.set()
    return heard


async def _leave(client: Client, heard: Heard, leave: Leave) -> None:
    if leave.way == "deadline":
        return
    heard.has_left = True
    if leave.way == "abort" and heard.started:
        await client.abort(heard.started.request_id)


def broken_sums(heard: Heard) -> str | None:
    """Which promise of the tallies a call that finished breaks."""
    if heard.finished is None:
        return None
    total, usage = heard.finished.speculation.total, heard.finished.usage
    histogram = total.accepted_length_histogram
    lost = total.accepted_draft_tokens + total.verify_steps - usage.completion_tokens
    promises = {
        "the histogram counts every step": sum(histogram) == total.verify_steps,
        "the histogram counts every accepted token": sum(i * n for i, n in enumerate(histogram))
        == total.accepted_draft_tokens,
        "no more is accepted than drafted": total.accepted_draft_tokens <= total.draft_tokens,
        "every token was accepted or sampled": 0 <= lost <= len(heard.answers),
        "usage counts what was sent": usage.completion_tokens == heard.num_tokens,
    }
    return next((f"broken: {name} ({total})" for name, kept in promises.items() if not kept), None)


def _score(told: Any) -> Score:
    others = tuple((other.token_id, _bits(other.logprob)) for other in told.alternatives)
    return (told.token_id, _bits(told.logprob), told.rank, others)


def _bits(number: float | None) -> int | None:
    return None if number is None else int.from_bytes(struct.pack(">f", number), "big")


def _number(bits: int | None) -> str:
    """Nine digits, by which two numbers of 32 bits differ whenever their bits do."""
    if bits is None:
        return "none"
    (number,) = struct.unpack(">f", bits.to_bytes(4, "big"))
    return f"{number:.9g}"


def _shown(value: object) -> str:
    if not isinstance(value, tuple):
        return repr(value)
    token, bits, rank, others = value
    alternatives = ", ".join(f"{other} {_number(its)}" for other, its in others)
    return f"token {token} {_number(bits)}, rank {rank}, of {alternatives}"


def _items(
    name: str, mine: tuple[Any, ...], its: tuple[Any, ...]
) -> list[tuple[str, object, object]]:
    pairs = zip(mine, its, strict=False)
    return [(f"{name} {place}", one, other) for place, (one, other) in enumerate(pairs)]


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
