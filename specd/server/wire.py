"""Domain events -> protobuf. The way back is `convert.py`.

Knows the wire messages and what a reader asked for (`OutputParams`); decides nothing else.

Invariant: every event gives exactly one response, whatever was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from google.protobuf.duration_pb2 import Duration
from specd_client.v1 import generation_pb2 as pb

from specd.engine import events
from specd.engine.params import OutputParams

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


def whole_response_from(
    stream: Iterable[events.Event], output: OutputParams
) -> pb.GenerateResponse:
    """Returns the answer of Generate, which holds what the events of a whole stream tell."""
    response = pb.GenerateResponse()
    sequence = response.sequences.add()
    texts: list[str] = []
    for event in stream:
        match event:
            case events.Delta():
                _add_delta(sequence, texts, event, output)
            case events.Started():
                _write_started(response.started, event)
            case events.SequenceFinished():
                _write_sequence_finished(sequence.finish, event)
            case events.Finished():
                _write_usage(response.usage, event.usage)
                _write_speculation(response.speculation, event.speculation)
            case _:
                assert_never(event)
    sequence.text = "".join(texts)
    return response


def _add_delta(
    sequence: pb.GeneratedSequence, texts: list[str], event: events.Delta, output: OutputParams
) -> None:
    if output.text:
        texts.append(event.text)
    if output.token_ids:
        sequence.token_ids.extend(event.token_ids)
    if output.speculation_steps:
        sequence.steps.extend(map(_step, event.steps))
    sequence.completion_tokens = event.num_completion_tokens


def _write_delta(delta: pb.Delta, event: events.Delta, output: OutputParams) -> None:
    if output.text:
        delta.text = event.text
    if output.token_ids:
        delta.token_ids.extend(event.token_ids)
    if output.speculation_steps:
        delta.steps.extend(map(_step, event.steps))
    delta.completion_tokens = event.num_completion_tokens


def _step(step: events.SpeculationStep) -> pb.SpeculationStep:
    return pb.SpeculationStep(
        drafter=step.drafter,
        draft_tokens=step.num_draft_tokens,
        accepted_draft_tokens=step.num_accepted,
    )


def _write_started(started: pb.Started, event: events.Started) -> None:
    started.request_id = event.request_id
    started.model = event.model
    started.prompt_tokens = event.num_prompt_tokens
    started.cached_prompt_tokens = event.num_cached_prompt_tokens
    started.seed = event.seed
    started.queue_time.CopyFrom(_duration(event.queue_time_s))
    started.arithmetic_fingerprint = event.fingerprint


def _write_sequence_finished(finished: pb.SequenceFinished, event: events.SequenceFinished) -> None:
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
