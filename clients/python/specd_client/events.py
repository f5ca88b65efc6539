"""What a stream tells, as frozen values, built from the wire messages.

Knows nothing of channels and calls. Invariant: each value holds everything that its message does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from google.protobuf.duration_pb2 import Duration

from specd_client.errors import ProtocolError
from specd_client.v1 import generation_pb2 as pb


class FinishReason(IntEnum):
    """Why a sequence ended. A failure is an exception, never a reason."""

    EOS_TOKEN = pb.FINISH_REASON_EOS_TOKEN
    STOP_TOKEN = pb.FINISH_REASON_STOP_TOKEN
    STOP_STRING = pb.FINISH_REASON_STOP_STRING
    MAX_TOKENS = pb.FINISH_REASON_MAX_TOKENS
    CONTEXT_LENGTH = pb.FINISH_REASON_CONTEXT_LENGTH
    ABORTED = pb.FINISH_REASON_ABORTED


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that could have been chosen. logprob: natural logarithm."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log probability of a token, and how many are more probable, plus 1.

    Both are None for the first prompt token. alternatives: the most probable tokens of this
    position, best first, as many as were asked for.
    """

    token_id: int
    logprob: float | None
    rank: int | None
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class Started:
    """The request is admitted.

    queue_time_s: from arrival to admission. sequence_seeds: the seed of each sequence, the first of
    which is `seed`; a request of its own with one of them gives the tokens of that sequence.
    prompt_logprobs: one per prompt token, where asked for.
    """

    request_id: str
    model: str
    prompt_tokens: int
    cached_prompt_tokens: int
    seed: int
    queue_time_s: float
    arithmetic_fingerprint: str
    prompt_logprobs: tuple[TokenLogprob, ...]
    sequence_seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpeculationStep:
    """How one step was drafted. drafter: None for a plain step."""

    drafter: str | None
    draft_tokens: int
    accepted_draft_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens of a sequence. text, token_ids and logprobs are new, completion_tokens counts all.

    token_ids, logprobs and steps are empty unless they were asked for.
    """

    sequence_index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    completion_tokens: int
    steps: tuple[SpeculationStep, ...]


@dataclass(frozen=True, slots=True)
class SequenceFinished:
    """One sequence is complete. At most one of the matches is set."""

    sequence_index: int
    finish_reason: FinishReason
    matched_token_id: int | None
    matched_stop_string: str | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a whole request."""

    prompt_tokens: int
    cached_prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class DrafterTally:
    """Counts over steps of a request; element i of the histogram counts steps that accepted i."""

    verify_steps: int
    draft_tokens: int
    accepted_draft_tokens: int
    accepted_length_histogram: tuple[int, ...]
    pad_positions: int
    late: int
    faults: int
    draft_time_s: float
    verify_time_s: float


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """total: every step that sampled. by_drafter: the steps that verified a draft, by its maker."""

    total: DrafterTally
    by_drafter: Mapping[str, DrafterTally]


@dataclass(frozen=True, slots=True)
class Finished:
    """The request is complete; nothing follows."""

    usage: Usage
    speculation: SpeculationStats


@dataclass(frozen=True, slots=True)
class GeneratedSequence:
    """A whole sequence. token_ids, logprobs and steps are empty unless they were asked for."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    steps: tuple[SpeculationStep, ...]
    completion_tokens: int
    finish_reason: FinishReason
    matched_token_id: int | None
    matched_stop_string: str | None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. `text` and what else belongs to a sequence is that of the first one."""

    started: Started
    sequences: tuple[GeneratedSequence, ...]
    usage: Usage
    speculation: SpeculationStats

    @property
    def text(self) -> str:
        return self.sequences[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.sequences[0].token_ids

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        return self.sequences[0].logprobs

    @property
    def steps(self) -> tuple[SpeculationStep, ...]:
        return self.sequences[0].steps

    @property
    def finish_reason(self) -> FinishReason:
        return self.sequences[0].finish_reason

    @property
    def matched_token_id(self) -> int | None:
        return self.sequences[0].matched_token_id

    @property
    def matched_stop_string(self) -> str | None:
        return self.sequences[0].matched_stop_string

    @property
    def request_id(self) -> str:
        """The id that the server knew the request by."""
        return self.started.request_id

    @property
    def seed(self) -> int:
        """The seed that the tokens were sampled with; the same one gives them again."""
        return self.started.seed


Event = Started | Delta | SequenceFinished | Finished


def event_from(response: pb.StreamGenerateResponse) -> Event:
    """Returns the event of one message. Raises ProtocolError for one that this client lacks."""
    match response.WhichOneof("event"):
        case "delta":
            return _delta(response.delta)
        case "started":
            return _started(response.started)
        case "sequence_finished":
            return _sequence_finished(response.sequence_finished)
        case "finished":
            return _finished(response.finished)
        case _:
            raise ProtocolError("the server sent an event that this client does not know")


def _started(message: pb.Started) -> Started:
    return Started(
        request_id=message.request_id,
        model=message.model,
        prompt_tokens=message.prompt_tokens,
        cached_prompt_tokens=message.cached_prompt_tokens,
        seed=message.seed,
        queue_time_s=_seconds(message.queue_time),
        arithmetic_fingerprint=message.arithmetic_fingerprint,
        prompt_logprobs=tuple(map(_logprob, message.prompt_logprobs)),
        sequence_seeds=tuple(message.sequence_seeds),
    )


def _delta(message: pb.Delta) -> Delta:
    return Delta(
        sequence_index=message.sequence_index,
        text=message.text,
        token_ids=tuple(message.token_ids),
        logprobs=tuple(map(_logprob, message.logprobs)),
        completion_tokens=message.completion_tokens,
        steps=tuple(map(_step, message.steps)),
    )


def _step(message: pb.SpeculationStep) -> SpeculationStep:
    drafter = message.drafter if message.HasField("drafter") else None
    return SpeculationStep(drafter, message.draft_tokens, message.accepted_draft_tokens)


def _logprob(message: pb.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(
        message.token_id,
        message.logprob if message.HasField("logprob") else None,
        message.rank if message.HasField("rank") else None,
        tuple(Alternative(item.token_id, item.logprob) for item in message.alternatives),
    )


def _sequence_finished(message: pb.SequenceFinished) -> SequenceFinished:
    try:
        reason = FinishReason(message.finish_reason)
    except ValueError:
        raise ProtocolError(f"unknown finish reason {message.finish_reason}") from None
    matched = message.WhichOneof("matched")
    return SequenceFinished(
        message.sequence_index,
        reason,
        message.matched_token_id if matched == "matched_token_id" else None,
        message.matched_stop_string if matched == "matched_stop_string" else None,
    )


def _finished(message: pb.Finished) -> Finished:
    usage = Usage(
        message.usage.prompt_tokens,
        message.usage.cached_prompt_tokens,
        message.usage.completion_tokens,
    )
    by_drafter = {name: _tally(tally) for name, tally in message.speculation.by_drafter.items()}
    return Finished(usage, SpeculationStats(_tally(message.speculation.total), by_drafter))


def _tally(message: pb.SpeculationTally) -> DrafterTally:
    return DrafterTally(
        verify_steps=message.verify_steps,
        draft_tokens=message.draft_tokens,
        accepted_draft_tokens=message.accepted_draft_tokens,
        accepted_length_histogram=tuple(message.accepted_length_histogram),
        pad_positions=message.pad_positions,
        late=message.late,
        faults=message.faults,
        draft_time_s=_seconds(message.draft_time),
        verify_time_s=_seconds(message.verify_time),
    )


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9
