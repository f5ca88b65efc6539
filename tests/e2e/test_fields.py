"""Penalties, biases, bans and several sequences, through the wire: what a caller asks for happens.

That no drafter and no neighbour changes any of it is the matter of `benchmarks/equality`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from specd_client import Client, Completion, FinishReason, InvalidRequest

from tests.e2e.calls import CONTEXT_LENGTH, PROMPT, answer, check_sums
from tests.support.daemon import Daemon
from tests.support.requests import EOS_ID, VOCAB_SIZE

LETTER_A = 65
GREEDY: dict[str, Any] = {"temperature": 0, "max_new_tokens": 24}
ENDLESS = GREEDY | {"ignore_eos": True}


@pytest.mark.asyncio
async def test_a_bias_forces_a_token_and_forbids_one(daemon: Daemon) -> None:
    async with Client(daemon.address) as client:
        plain = await answer(client, **ENDLESS)
        forced = await answer(client, logit_bias={LETTER_A: 1000}, **ENDLESS)
        assert forced.token_ids == (LETTER_A,) * 24
        without = dict.fromkeys(set(plain.token_ids), -1000)
        assert not set(plain.token_ids) & set(
            (await answer(client, logit_bias=without, **ENDLESS)).token_ids
        )


@pytest.mark.asyncio
async def test_the_last_token_of_the_vocabulary_may_be_forced_where_ends_are_ignored(
    daemon: Daemon,
) -> None:
    assert EOS_ID == VOCAB_SIZE - 1, "an end token, and what an index of -1 would hit"
    options = ENDLESS | {"min_new_tokens": 5, "logit_bias": {EOS_ID: 1000.0}}
    async with Client(daemon.address) as client:
        run = await answer(client, **options)
    assert run.token_ids == (EOS_ID,) * 24


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
@pytest.mark.asyncio
async def test_what_the_answer_holds_is_avoided_or_sought(daemon: Daemon, name: str) -> None:
    async with Client(daemon.address) as client:
        avoiding = await answer(client, **ENDLESS | {name: 100})
        seeking = await answer(client, **ENDLESS | {name: -100})
    assert len(set(avoiding.token_ids)) == 24
    assert set(seeking.token_ids) == {seeking.token_ids[0]}


@pytest.mark.asyncio
async def test_what_the_prompt_holds_is_avoided_too_by_repetition_alone(daemon: Daemon) -> None:
    async with Client(daemon.address) as client:
        first = (await answer(client, **ENDLESS)).token_ids[0]
        prompt = [*await client.tokenize(PROMPT), first]
        plain = await answer(client, prompt, **ENDLESS)
        for name, value in (("presence_penalty", 100), ("frequency_penalty", 100)):
            run = await answer(client, prompt, **{name: value}, **ENDLESS)
            assert run.token_ids[0] == plain.token_ids[0], f"{name} looks at the answer alone"
        # All logits of the prompt's tokens are at most 0 then, and those of others are not.
        prompt = [*range(256), first]
        repeated = await answer(client, prompt, repetition_penalty=100, **ENDLESS)
    assert not set(repeated.token_ids) & set(prompt)


@pytest.mark.parametrize("minimum", [1, 9, 24])
@pytest.mark.asyncio
async def test_an_end_that_comes_too_soon_does_not_come(daemon: Daemon, minimum: int) -> None:
    bias = {EOS_ID: 1000.0}
    async with Client(daemon.address) as client:
        soon = await answer(client, logit_bias=bias, **GREEDY)
        late = await answer(client, logit_bias=bias, min_new_tokens=minimum, **GREEDY)
    assert (len(soon.token_ids), soon.finish_reason) == (1, FinishReason.EOS_TOKEN)
    assert EOS_ID not in late.token_ids[:minimum]
    if minimum < 24:
        assert (len(late.token_ids), late.matched_token_id) == (minimum + 1, EOS_ID)
    else:
        assert late.finish_reason is FinishReason.MAX_TOKENS


@pytest.mark.asyncio
async def test_stops_of_the_caller_wait_as_the_end_tokens_do(daemon: Daemon) -> None:
    bias = {LETTER_A: 1000.0, LETTER_A + 1: 500.0}
    options = GREEDY | {"logit_bias": bias, "min_new_tokens": 6}
    async with Client(daemon.address) as client:
        by_id = await answer(client, stop_token_ids=[LETTER_A], **options)
        by_text = await answer(client, stop_strings=["A"], **options)
    assert by_id.token_ids == (*[LETTER_A + 1] * 6, LETTER_A)
    assert by_text.token_ids == (LETTER_A,) * 7
    assert by_text.text == "A" * 6


@pytest.mark.asyncio
async def test_each_sequence_is_what_a_request_with_its_seed_is(daemon: Daemon) -> None:
    options: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True, "top_logprobs": 2}
    async with Client(daemon.address) as client:
        several = await answer(client, num_sequences=5, seed=77, **options)
        alone = await asyncio.gather(
            *(answer(client, seed=seed, **options) for seed in several.started.sequence_seeds)
        )
    assert several.started.sequence_seeds[0] == several.seed == 77
    assert len({sequence.token_ids for sequence in several.sequences}) == 5
    for sequence, run in zip(several.sequences, alone, strict=True):
        assert (sequence.token_ids, sequence.text) == (run.token_ids, run.text)
        assert sequence.logprobs == run.logprobs
        check_sums(run)
    _check_counts(several, alone)


def _check_counts(several: Completion, alone: list[Completion]) -> None:
    """The prompt counts once, tokens and steps count for every sequence."""
    assert several.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert several.usage.completion_tokens == 5 * 40
    histogram = several.speculation.total.accepted_length_histogram
    assert sum(histogram) == several.speculation.total.verify_steps
    steps = [step for sequence in several.sequences for step in sequence.steps]
    assert len(steps) == several.speculation.total.verify_steps


@pytest.mark.asyncio
async def test_sequences_end_each_by_itself(daemon: Daemon) -> None:
    options: dict[str, Any] = {"seed": 3, "max_new_tokens": 20, "logit_bias": {EOS_ID: 4.0}}
    async with Client(daemon.address) as client:
        run = await answer(client, num_sequences=16, temperature=2, **options)
    reasons = {sequence.finish_reason for sequence in run.sequences}
    assert reasons == {FinishReason.EOS_TOKEN, FinishReason.MAX_TOKENS}
    assert len({len(sequence.token_ids) for sequence in run.sequences}) > 2
    assert sum(len(s.token_ids) for s in run.sequences) == run.usage.completion_tokens


@pytest.mark.asyncio
async def test_an_abort_ends_all_sequences(daemon: Daemon) -> None:
    async with Client(daemon.address) as client:
        stream = client.stream(PROMPT, request_id="many", num_sequences=4, ignore_eos=True)
        events = [await anext(stream)]
        assert await client.abort("many")
        events += [event async for event in stream]
    ends = {getattr(event, "finish_reason", None) for event in events} - {None}
    assert ends == {FinishReason.ABORTED}


@pytest.mark.asyncio
async def test_illegal_stop_tokens_beside_a_least_length_change_nothing_for_a_neighbour(
    daemon: Daemon,
) -> None:
    options: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_new_tokens": 200}
    async with Client(daemon.address) as client:
        solo = await answer(client, **options)
        neighbour = asyncio.create_task(answer(client, **options))
        for bad in (VOCAB_SIZE + 5, VOCAB_SIZE, 2**32 - 1):
            with pytest.raises(InvalidRequest) as refused:
                await answer(client, stop_token_ids=[1, bad], min_new_tokens=5)
            assert refused.value.field_violations[0].field == "stop.stop_token_ids[1]"
        assert (await neighbour).token_ids == solo.token_ids


@pytest.mark.asyncio
async def test_the_context_ends_an_answer_before_its_least_length(daemon: Daemon) -> None:
    prompt = [LETTER_A] * (CONTEXT_LENGTH - 8)
    async with Client(daemon.address) as client:
        run = await answer(client, prompt, min_new_tokens=100, temperature=0)
    assert (len(run.token_ids), run.finish_reason) == (8, FinishReason.CONTEXT_LENGTH)
