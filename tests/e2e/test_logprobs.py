"""Log probabilities on the wire: one per token, its own, of the distribution that was asked for."""

from __future__ import annotations

import math
from typing import Any

import pytest
from specd_client import Client, Completion, TokenLogprob
from specd_client.v1 import generation_pb2 as pb

from tests.e2e.calls import PROMPT, answer, stream_request, stubs
from tests.support.daemon import Daemon
from tests.support.requests import VOCAB_SIZE

# Runs of accepted drafts, and so deltas of several tokens, need a text that repeats itself.
REPETITIVE = "Nobody speaks. " * 12
BURSTS: dict[str, Any] = {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}


async def _deltas(daemon: Daemon, **parts: Any) -> list[pb.Delta]:
    async with stubs(daemon.address) as calls:
        stream = calls.generation.StreamGenerate(stream_request(**parts))
        return [message.delta async for message in stream if message.HasField("delta")]


def _part(**output: Any) -> dict[str, Any]:
    return {
        "input": {"text": REPETITIVE},
        "sampling": {"temperature": 0},
        "stop": {"max_new_tokens": 60, "ignore_eos": True},
        "output": {"token_ids": True} | output,
    }


@pytest.mark.asyncio
async def test_every_message_has_as_many_log_probabilities_as_tokens(daemon: Daemon) -> None:
    deltas = await _deltas(daemon, **_part(top_logprobs=2))
    assert max(len(delta.token_ids) for delta in deltas) > 2, "no burst came"
    seen = 0
    for delta in deltas:
        assert [entry.token_id for entry in delta.logprobs] == list(delta.token_ids)
        seen += len(delta.logprobs)
        assert seen == delta.completion_tokens
        for entry in delta.logprobs:
            assert entry.HasField("logprob") and entry.HasField("rank")
            assert len(entry.alternatives) == 2


@pytest.mark.asyncio
async def test_each_token_of_a_burst_has_the_alternatives_of_its_own_position(
    daemon: Daemon,
) -> None:
    deltas = await _deltas(daemon, **_part(top_logprobs=1))
    assert any(len(set(delta.token_ids)) > 1 for delta in deltas), "no burst of different tokens"
    for delta in deltas:
        for entry in delta.logprobs:
            (best,) = entry.alternatives
            assert (best.token_id, best.logprob, entry.rank) == (entry.token_id, entry.logprob, 1)


@pytest.mark.asyncio
async def test_no_alternatives_give_the_log_probability_of_the_token_alone(daemon: Daemon) -> None:
    async with Client(daemon.address) as client:
        unasked = await answer(client, REPETITIVE, **BURSTS)
        alone = await answer(client, REPETITIVE, top_logprobs=0, **BURSTS)
        several = await answer(client, REPETITIVE, top_logprobs=20, **BURSTS)
    assert unasked.logprobs == ()
    assert len(alone.logprobs) == 60 and not any(entry.alternatives for entry in alone.logprobs)
    assert _alone(alone) == _alone(several)
    assert {len(entry.alternatives) for entry in several.logprobs} == {20}
    assert unasked.token_ids == alone.token_ids == several.token_ids


def _alone(run: Completion) -> list[tuple[float | None, int | None]]:
    return [(entry.logprob, entry.rank) for entry in run.logprobs]


@pytest.mark.asyncio
async def test_log_probabilities_come_without_ids_and_text(daemon: Daemon) -> None:
    deltas = await _deltas(daemon, **_part(top_logprobs=0, token_ids=False, text=False))
    assert sum(len(delta.logprobs) for delta in deltas) == 60
    assert not any(delta.token_ids or delta.text for delta in deltas)


@pytest.mark.asyncio
async def test_alternatives_come_best_first_and_make_up_the_rank(daemon: Daemon) -> None:
    options: dict[str, Any] = {"temperature": 2, "seed": 1, "ignore_eos": True}
    async with Client(daemon.address) as client:
        run = await answer(client, max_new_tokens=80, top_logprobs=20, **options)
    for entry in run.logprobs:
        values = [other.logprob for other in entry.alternatives]
        assert values == sorted(values, reverse=True)
        assert entry.logprob is not None and entry.rank is not None
        if entry.rank <= 20:
            assert entry.rank == 1 + sum(value > entry.logprob for value in values)
            assert entry.token_id in {other.token_id for other in entry.alternatives}
    assert max(entry.rank or 0 for entry in run.logprobs) > 20


@pytest.mark.asyncio
async def test_raw_is_the_model_s_own_word_and_processed_what_was_drawn_from(
    daemon: Daemon,
) -> None:
    options: dict[str, Any] = {"seed": 5, "max_new_tokens": 40, "ignore_eos": True}
    options |= {"temperature": 0.5, "top_k": 3, "logit_bias": {65: 5.0}, "top_logprobs": 20}
    async with Client(daemon.address) as client:
        default, raw, processed = [
            await answer(client, **options, **basis)
            for basis in ({}, {"logprob_basis": "RAW"}, {"logprob_basis": "PROCESSED"})
        ]
    assert default.logprobs == raw.logprobs != processed.logprobs
    assert raw.token_ids == processed.token_ids
    for entry in processed.logprobs:
        kept = [math.exp(other.logprob) for other in entry.alternatives]
        assert len(kept) == 3 and sum(kept) == pytest.approx(1, abs=1e-5)
    assert {len(entry.alternatives) for entry in raw.logprobs} == {20}


@pytest.mark.parametrize("alternatives", [0, 3])
@pytest.mark.asyncio
async def test_the_prompt_s_log_probabilities_come_with_started(
    daemon: Daemon, alternatives: int
) -> None:
    async with Client(daemon.address) as client:
        run = await answer(client, prompt_logprobs=alternatives, max_new_tokens=1)
        prompt = await client.tokenize(PROMPT)
    entries = run.started.prompt_logprobs
    assert tuple(entry.token_id for entry in entries) == prompt
    assert entries[0] == TokenLogprob(prompt[0], None, None, ())
    for entry in entries[1:]:
        assert entry.logprob is not None and entry.rank is not None
        assert len(entry.alternatives) == alternatives
        assert entry.logprob < 0 and 1 <= entry.rank <= VOCAB_SIZE


@pytest.mark.asyncio
async def test_a_prompt_is_scored_as_an_answer_is(daemon: Daemon) -> None:
    async with Client(daemon.address) as client:
        prompt = await client.tokenize(PROMPT)
        run = await answer(client, prompt, top_logprobs=2, seed=9, max_new_tokens=30)
        again = await answer(client, [*prompt, *run.token_ids], prompt_logprobs=2, max_new_tokens=1)
    assert again.started.prompt_logprobs[len(prompt) :] == run.logprobs
