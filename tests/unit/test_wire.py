"""What a reader is told, by what it asked for."""

from __future__ import annotations

import pytest
from specd_client.v1 import generation_pb2 as pb

from specd.engine import events
from specd.engine.params import OutputParams
from specd.server import wire

EVERYTHING = OutputParams(text=True, token_ids=True, speculation_steps=True)
NOTHING = OutputParams(text=False)
STARTED = events.Started("r", "tiny", 5, 4, 2**64 - 1, 1.5, "f00d")
DELTAS = (
    events.Delta("Hé", (3, 1), 2, (events.SpeculationStep("ngram", 4, 1),)),
    events.Delta("y", (0,), 3, (events.SpeculationStep(None, 0, 0),)),
)
STOPPED = events.SequenceFinished(events.FinishReason.STOP_STRING, matched_string="y")
TALLY = events.DrafterTally(2, 4, 1, (1, 1), 3, 1, 2, 0.25, 2.000000001)
FINISHED = events.Finished(
    events.Usage(5, 4, 3), events.SpeculationStats(TALLY, {"ngram": events.DrafterTally(1, 4, 1)})
)
STREAM = (STARTED, *DELTAS, STOPPED, FINISHED)


def test_started_tells_what_the_request_was_resolved_to() -> None:
    started = wire.response_from(STARTED, NOTHING).started
    assert (started.request_id, started.model, started.seed) == ("r", "tiny", 2**64 - 1)
    assert (started.prompt_tokens, started.cached_prompt_tokens) == (5, 4)
    assert started.queue_time.ToMilliseconds() == 1500
    assert started.arithmetic_fingerprint == "f00d"


def test_a_delta_carries_everything_that_was_asked_for() -> None:
    delta = wire.response_from(DELTAS[0], EVERYTHING).delta
    assert (delta.text, list(delta.token_ids), delta.completion_tokens) == ("Hé", [3, 1], 2)
    assert list(delta.steps) == [
        pb.SpeculationStep(drafter="ngram", draft_tokens=4, accepted_draft_tokens=1)
    ]


def test_a_delta_carries_nothing_that_was_not_asked_for() -> None:
    response = wire.response_from(DELTAS[0], NOTHING)
    assert response == pb.StreamGenerateResponse(delta=pb.Delta(completion_tokens=2))


def test_a_plain_step_names_no_drafter() -> None:
    (step,) = wire.response_from(DELTAS[1], EVERYTHING).delta.steps
    assert not step.HasField("drafter")


@pytest.mark.parametrize("reason", events.FinishReason)
def test_a_finish_reason_keeps_its_name(reason: events.FinishReason) -> None:
    finished = wire.response_from(events.SequenceFinished(reason), NOTHING).sequence_finished
    assert pb.FinishReason.Name(finished.finish_reason) == f"FINISH_REASON_{reason.name}"


def test_token_id_zero_is_a_match() -> None:
    stop = events.SequenceFinished(events.FinishReason.EOS_TOKEN, matched_token_id=0)
    finished = wire.response_from(stop, NOTHING).sequence_finished
    assert finished.WhichOneof("matched") == "matched_token_id"


def test_finished_tells_usage_and_speculation() -> None:
    finished = wire.response_from(FINISHED, NOTHING).finished
    assert finished.usage == pb.Usage(prompt_tokens=5, cached_prompt_tokens=4, completion_tokens=3)
    total = finished.speculation.total
    assert (total.verify_steps, total.draft_tokens, total.accepted_draft_tokens) == (2, 4, 1)
    assert list(total.accepted_length_histogram) == [1, 1]
    assert (total.pad_positions, total.late, total.faults) == (3, 1, 2)
    assert total.draft_time.ToNanoseconds() == 250_000_000
    assert total.verify_time.ToNanoseconds() == 2_000_000_001
    assert finished.speculation.by_drafter["ngram"].draft_tokens == 4


def test_an_event_without_content_still_has_its_kind() -> None:
    nothing = events.Finished(events.Usage(0, 0, 0), events.SpeculationStats(events.DrafterTally()))
    kinds = [
        wire.response_from(event, NOTHING).WhichOneof("event")
        for event in (events.Delta("", (), 0), nothing)
    ]
    assert kinds == ["delta", "finished"]


def test_the_unary_answer_holds_what_the_stream_told() -> None:
    whole = wire.whole_response_from(STREAM, EVERYTHING)
    (sequence,) = whole.sequences
    assert whole.started == wire.response_from(STARTED, EVERYTHING).started
    assert (sequence.text, list(sequence.token_ids)) == ("Héy", [3, 1, 0])
    assert (sequence.completion_tokens, len(sequence.steps)) == (3, 2)
    assert sequence.finish == wire.response_from(STOPPED, EVERYTHING).sequence_finished
    finished = wire.response_from(FINISHED, EVERYTHING).finished
    assert (whole.usage, whole.speculation) == (finished.usage, finished.speculation)


def test_the_unary_answer_carries_nothing_that_was_not_asked_for() -> None:
    (sequence,) = wire.whole_response_from(STREAM, NOTHING).sequences
    assert (sequence.text, list(sequence.token_ids), list(sequence.steps)) == ("", [], [])
