"""What a reader is told, by what it asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from specd_client.v1 import generation_pb2 as pb

from specd import errors
from specd.engine import events
from specd.engine.params import OutputParams
from specd.engine.step_types import TokenLogprob
from specd.server import wire

EVERYTHING = OutputParams(text=True, token_ids=True, speculation_steps=True, top_logprobs=1)
NOTHING = OutputParams(text=False)
SEEDS = (2**64 - 1, 0)
FIRST_PROMPT_TOKEN = TokenLogprob(0, None, None)
# Each exact in fp32.
LOGPROBS = (
    TokenLogprob(3, -0.5, 1, ((3, -0.5), (0, -1.5))),
    TokenLogprob(1, -8.25, 500, ((7, -0.125),)),
    TokenLogprob(0, 0.0, 1),
)
STARTED = events.Started(
    *("r", "tiny", 5, 4, SEEDS[0], 1.5, "f00d"),
    sequence_seeds=SEEDS,
    prompt_logprobs=(FIRST_PROMPT_TOKEN, LOGPROBS[1]),
)
DELTAS = (
    events.Delta(
        *("Hé", (3, 1), 2, (events.SpeculationStep("ngram", 4, 1),)), logprobs=LOGPROBS[:2]
    ),
    events.Delta("y", (0,), 3, (events.SpeculationStep(None, 0, 0),), logprobs=LOGPROBS[2:]),
)
OTHERS = tuple(replace(delta, sequence_index=1) for delta in DELTAS)
STOPPED = events.SequenceFinished(events.FinishReason.STOP_STRING, matched_string="y")
TALLY = events.DrafterTally(2, 4, 1, (1, 1), 3, 1, 2, 0.25, 2.000000001)
FINISHED = events.Finished(
    events.Usage(5, 4, 3), events.SpeculationStats(TALLY, {"ngram": events.DrafterTally(1, 4, 1)})
)
OTHER_STOPPED = events.SequenceFinished(events.FinishReason.MAX_TOKENS, sequence_index=1)
STREAM = (STARTED, *DELTAS, STOPPED, FINISHED)
# Sequences take turns and end in any order.
TWO: tuple[events.Event, ...] = (
    STARTED,
    DELTAS[0],
    *OTHERS,
    OTHER_STOPPED,
    DELTAS[1],
    STOPPED,
    FINISHED,
)


def whole(
    stream: Iterable[events.Event], output: OutputParams, **limit: int
) -> pb.GenerateResponse:
    answer = wire.WholeAnswer(output, **limit)
    for event in stream:
        answer.add(event)
    return answer.response()


def test_started_tells_what_the_request_was_resolved_to() -> None:
    started = wire.response_from(STARTED, NOTHING).started
    assert (started.request_id, started.model, started.seed) == ("r", "tiny", 2**64 - 1)
    assert (started.prompt_tokens, started.cached_prompt_tokens) == (5, 4)
    assert started.queue_time.ToMilliseconds() == 1500
    assert started.arithmetic_fingerprint == "f00d"


def test_started_tells_the_seed_of_each_sequence_and_the_prompt_s_log_probabilities() -> None:
    started = wire.response_from(STARTED, NOTHING).started
    assert tuple(started.sequence_seeds) == SEEDS
    first, second = started.prompt_logprobs
    assert first == pb.TokenLogprob(token_id=0)
    assert not first.HasField("logprob") and not first.HasField("rank")
    assert (second.token_id, second.logprob, second.rank) == (1, -8.25, 500)


def test_log_probabilities_are_one_per_token_with_rank_and_alternatives() -> None:
    delta = wire.response_from(DELTAS[0], EVERYTHING).delta
    assert [entry.token_id for entry in delta.logprobs] == list(delta.token_ids)
    assert delta.logprobs[0] == pb.TokenLogprob(
        token_id=3,
        logprob=-0.5,
        rank=1,
        alternatives=[
            pb.Alternative(token_id=3, logprob=-0.5),
            pb.Alternative(token_id=0, logprob=-1.5),
        ],
    )


def test_log_probabilities_come_without_ids_where_only_they_were_asked_for() -> None:
    output = OutputParams(text=False, top_logprobs=0)
    delta = wire.response_from(DELTAS[0], output).delta
    assert ([entry.token_id for entry in delta.logprobs], list(delta.token_ids)) == ([3, 1], [])


def test_log_probabilities_are_counted_with_their_alternatives() -> None:
    counted = [wire.num_logprobs(event) for event in STREAM]
    assert counted == [3, 5, 1, 0, 0]


def test_a_log_probability_of_zero_is_there() -> None:
    (entry,) = wire.response_from(DELTAS[1], EVERYTHING).delta.logprobs
    assert entry.HasField("logprob") and entry.logprob == 0.0


def test_a_delta_and_an_end_name_their_sequence() -> None:
    for event, index in ((DELTAS[0], 0), (OTHERS[0], 1)):
        assert wire.response_from(event, NOTHING).delta.sequence_index == index
    for end, index in ((STOPPED, 0), (OTHER_STOPPED, 1)):
        assert wire.response_from(end, NOTHING).sequence_finished.sequence_index == index


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
    found = whole(STREAM, EVERYTHING)
    (sequence,) = found.sequences
    assert found.started == wire.response_from(STARTED, EVERYTHING).started
    assert (sequence.text, list(sequence.token_ids)) == ("Héy", [3, 1, 0])
    assert (sequence.completion_tokens, len(sequence.steps)) == (3, 2)
    assert [entry.rank for entry in sequence.logprobs] == [1, 500, 1]
    assert sequence.finish == wire.response_from(STOPPED, EVERYTHING).sequence_finished
    finished = wire.response_from(FINISHED, EVERYTHING).finished
    assert (found.usage, found.speculation) == (finished.usage, finished.speculation)


def test_the_unary_answer_holds_each_sequence_as_if_it_were_alone() -> None:
    (alone,) = whole(STREAM, EVERYTHING).sequences
    first, second = whole(TWO, EVERYTHING).sequences
    assert first == alone
    assert second.finish == wire.response_from(OTHER_STOPPED, EVERYTHING).sequence_finished
    second.finish.CopyFrom(alone.finish)
    assert second == alone


def test_a_sequence_without_a_token_has_its_place_in_the_unary_answer() -> None:
    aborted = events.SequenceFinished(events.FinishReason.ABORTED)
    stream = (STARTED, OTHER_STOPPED, aborted, FINISHED)
    first, second = whole(stream, EVERYTHING).sequences
    assert (first.finish.sequence_index, second.finish.sequence_index) == (0, 1)
    assert first.finish.finish_reason == pb.FINISH_REASON_ABORTED


def test_the_unary_answer_carries_nothing_that_was_not_asked_for() -> None:
    (sequence,) = whole(STREAM, NOTHING).sequences
    assert (sequence.text, list(sequence.token_ids), list(sequence.steps)) == ("", [], [])
    assert not sequence.logprobs


def test_a_unary_answer_that_outgrows_its_message_fails_at_once() -> None:
    sizes = [wire.response_from(event, EVERYTHING).ByteSize() for event in (STARTED, *DELTAS)]
    assert whole(STREAM, EVERYTHING, max_bytes=sum(sizes)).sequences
    with pytest.raises(errors.AnswerTooLarge):
        whole((STARTED, DELTAS[0], DELTAS[0]), EVERYTHING, max_bytes=sum(sizes[:2]))
