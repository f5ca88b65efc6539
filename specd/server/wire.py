"""Domain events -> protobuf. The way back is `convert.py`.

Knows the wire messages and what a reader asked for (`OutputParams`); decides nothing else.

Invariant: every event gives exactly one response, whatever was asked for.
"""

from __future__ import annotations

from typing import assert_never

from google.protobuf.duration_pb2 import Duration
from specd_client.v1 import generation_pb2 as pb

from specd.engine import events
from specd.engine.params import OutputParams
from specd.engine.step_types import TokenLogprob
from specd.errors import AnswerTooLarge
from specd.server.message_sizes import TOKEN_BYTES

FINISH_REASONS = {
    events.FinishReason.EOS_TOKEN: pb.FINISH_REASON_EOS_TOKEN,
    events.FinishReason.STOP_TOKEN: pb.FINISH_REASON_STOP_TOKEN,
    events.FinishReason.STOP_STRING: pb.FINISH_REASON_STOP_STRING,
    events.FinishReason.MAX_TOKENS: pb.FINISH_REASON_MAX_TOKENS,
    events.FinishReason.CONTEXT_LENGTH: pb.FINISH_REASON_CONTEXT_LENGTH,
    events.FinishReason.ABORTED: pb.FINISH_REASON_ABORTED,
}


def response_from(event: events.Event, output: OutputParams) -> pb.StreamGenerateResponse:
    """Returns the one response that tells `event` to a reader who asked for `output`."""
    response = pb.StreamGenerateResponse()
    match event:
        case events.Delta():
            _write_delta(response.delta, event, output)
        case events.Started():
            _write_started(response.started, event)
        case events.SequenceFinished():
            _write_sequence_finished(response.sequence_finished, event)
        case events.Finished():
            _write_finished(response.finished, event)
        case _:
            assert_never(event)
    return response


def num_logprobs(event: events.Event) -> int:
    """How many log probabilities `event` tells, alternatives included."""
    match event:
        case events.Delta():
            entries = event.logprobs
        case events.Started():
            entries = event.prompt_logprobs
        case _:
            return 0
    return sum(1 + len(entry.alternatives) for entry in entries)


class WholeAnswer:
    """The answer of Generate, gathered from the events of a stream in their order."""

    def __init__(self, output: OutputParams, *, max_bytes: int = TOKEN_BYTES) -> None:
        """max_bytes: of what grows with the tokens."""
        self._output = output
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._response = pb.GenerateResponse()
        self._texts: list[list[str]] = []

    def add(self, event: events.Event) -> None:
        """Takes the next event. Raises AnswerTooLarge where no message holds the answer."""
        match event:
            case events.Delta():
                self._add_delta(event)
            case events.Started():
                _write_started(self._response.started, event)
                self._count(self._response.started.ByteSize())
            case events.SequenceFinished():
                _write_sequence_finished(self._sequence(event.sequence_index).finish, event)
            case events.Finished():
                _write_usage(self._response.usage, event.usage)
                _write_speculation(self._response.speculation, event.speculation)
            case _:
                assert_never(event)

    def response(self) -> pb.GenerateResponse:
        """Returns what the events told."""
        for sequence, texts in zip(self._response.sequences, self._texts, strict=True):
            sequence.text = "".join(texts)
        return self._response

    def _add_delta(self, event: events.Delta) -> None:
        delta = pb.Delta()
        _write_delta(delta, event, self._output)
        self._count(delta.ByteSize())
        sequence = self._sequence(event.sequence_index)
        sequence.token_ids.extend(delta.token_ids)
        sequence.logprobs.extend(delta.logprobs)
        sequence.steps.extend(delta.steps)
        sequence.completion_tokens = delta.completion_tokens
        self._texts[event.sequence_index].append(delta.text)

    def _sequence(self, index: int) -> pb.GeneratedSequence:
        """Made by the first event of any with this index or a higher one."""
        while len(self._texts) <= index:
            self._response.sequences.add()
            self._texts.append([])
        return self._response.sequences[index]

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        if self._num_bytes > self._max_bytes:
            raise AnswerTooLarge(self._max_bytes)


def _write_delta(delta: pb.Delta, event: events.Delta, output: OutputParams) -> None:
    delta.sequence_index = event.sequence_index
    if output.text:
        delta.text = event.text
    if output.token_ids:
        delta.token_ids.extend(event.token_ids)
    if output.speculation_steps:
        delta.steps.extend(map(_step, event.steps))
    if output.top_logprobs is not None:
        delta.logprobs.extend(map(_logprob, event.logprobs))
    delta.completion_tokens = event.num_completion_tokens


def _step(step: events.SpeculationStep) -> pb.SpeculationStep:
    return pb.SpeculationStep(
        drafter=step.drafter,
        draft_tokens=step.num_draft_tokens,
        accepted_draft_tokens=step.num_accepted,
    )


def _logprob(logprob: TokenLogprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(
        token_id=logprob.token_id,
        logprob=logprob.logprob,
        rank=logprob.rank,
        alternatives=[
            pb.Alternative(token_id=token_id, logprob=value)
            for token_id, value in logprob.alternatives
        ],
    )


def _write_started(started: pb.Started, event: events.Started) -> None:
    started.request_id = event.request_id
    started.model = event.model
    started.prompt_tokens = event.num_prompt_tokens
    started.cached_prompt_tokens = event.num_cached_prompt_tokens
    started.seed = event.seed
    started.queue_time.CopyFrom(_duration(event.queue_time_s))
    started.arithmetic_fingerprint = event.fingerprint
    started.prompt_logprobs.extend(map(_logprob, event.prompt_logprobs))
    started.sequence_seeds.extend(event.sequence_seeds)


def _write_sequence_finished(finished: pb.SequenceFinished, event: events.SequenceFinished) -> None:
    finished.sequence_index = event.sequence_index
    finished.finish_reason = FINISH_REASONS[event.reason]
    if event.matched_token_id is not None:
        finished.matched_token_id = event.matched_token_id
    if event.matched_string is not None:
        finished.matched_stop_string = event.matched_string


def _write_finished(finished: pb.Finished, event: events.Finished) -> None:
    _write_usage(finished.usage, event.usage)
    _write_speculation(finished.speculation, event.speculation)


def _write_usage(usage: pb.Usage, event: events.Usage) -> None:
    usage.prompt_tokens = event.num_prompt_tokens
    usage.cached_prompt_tokens = event.num_cached_prompt_tokens
    usage.completion_tokens = event.num_completion_tokens


def _write_speculation(stats: pb.SpeculationStats, event: events.SpeculationStats) -> None:
    stats.total.CopyFrom(_tally(event.total))
    for name, tally in event.by_drafter.items():
        stats.by_drafter[name].CopyFrom(_tally(tally))


def _tally(tally: events.DrafterTally) -> pb.SpeculationTally:
    return pb.SpeculationTally(
        verify_steps=tally.verify_steps,
        draft_tokens=tally.draft_tokens,
        accepted_draft_tokens=tally.accepted_draft_tokens,
        accepted_length_histogram=tally.accepted_length_histogram,
        pad_positions=tally.pad_positions,
        late=tally.late,
        faults=tally.faults,
        draft_time=_duration(tally.draft_time_s),
        verify_time=_duration(tally.verify_time_s),
    )


def _duration(seconds: float) -> Duration:
    """Rounds to whole nanoseconds, which is what the wire carries."""
    whole, nanos = divmod(round(seconds * 1e9), 10**9)
    return Duration(seconds=whole, nanos=nanos)
