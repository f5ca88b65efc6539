"""StreamGenerate and Generate on the wire: the order of events, what they carry, and seeds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from specd_client import Client
from specd_client.v1 import generation_pb2 as pb

from tests.e2e.calls import (
    PROMPT,
    PROMPTS,
    answer,
    detokenized,
    quiet,
    stream_request,
    stubs,
)
from tests.support.daemon import Daemon, running_daemon


async def _messages(daemon: Daemon, **parts: Any) -> list[pb.StreamGenerateResponse]:
    """All messages of a stream whose status is OK."""
    async with stubs(daemon.address) as calls:
        call = calls.generation.StreamGenerate(stream_request(**parts))
        found = [message async for message in call]
        assert await call.code() is grpc.StatusCode.OK
        return found


@pytest.mark.asyncio
async def test_events_come_in_order_and_finished_once_and_last(daemon: Daemon, toy: Path) -> None:
    stop = {"max_new_tokens": 20, "ignore_eos": True}
    messages = await _messages(daemon, request_id="mine", stop=stop)
    kinds = [message.WhichOneof("event") for message in messages]
    assert kinds[0] == "started"
    assert set(kinds[1:-2]) == {"delta"}
    assert kinds[-2:] == ["sequence_finished", "finished"]
    started, finished = messages[0].started, messages[-1].finished
    assert (started.request_id, started.model) == ("mine", str(toy))
    assert started.prompt_tokens == finished.usage.prompt_tokens > 4
    assert started.HasField("queue_time") and started.arithmetic_fingerprint
    counts = [message.delta.completion_tokens for message in messages[1:-2]]
    assert counts == sorted(set(counts)), "cumulative, and every delta has something new"
    assert counts[-1] == finished.usage.completion_tokens == 20


@pytest.mark.parametrize("text", [None, True, False])
@pytest.mark.parametrize("token_ids", [None, True, False])
@pytest.mark.parametrize("steps", [None, True, False])
@pytest.mark.asyncio
async def test_deltas_carry_what_was_asked_for_and_nothing_else(
    daemon: Daemon, text: bool | None, token_ids: bool | None, steps: bool | None
) -> None:
    output = {"text": text, "token_ids": token_ids, "speculation_steps": steps}
    output = {name: value for name, value in output.items() if value is not None}
    messages = await _messages(
        daemon, output=output, stop={"max_new_tokens": 8, "ignore_eos": True}
    )
    deltas = [message.delta for message in messages if message.HasField("delta")]
    assert any(delta.text for delta in deltas) is (text is not False)
    assert any(delta.token_ids for delta in deltas) is (token_ids is True)
    assert any(delta.steps for delta in deltas) is (steps is True)
    assert deltas[-1].completion_tokens == 8


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.asyncio
async def test_deltas_joined_are_the_text_of_the_tokens(daemon: Daemon, prompt: str) -> None:
    async with Client(daemon.address) as client:
        run = await answer(client, prompt, seed=4, max_new_tokens=150, ignore_eos=True)
        assert run.text == await detokenized(client, run.token_ids)
        shown = await answer(
            client, prompt, seed=4, max_new_tokens=150, ignore_eos=True, skip_special_tokens=False
        )
        assert shown.token_ids == run.token_ids
        assert shown.text == await detokenized(client, run.token_ids, skip_special_tokens=False)


@pytest.mark.asyncio
async def test_half_a_character_in_the_prompt_leaks_nothing_into_the_answer(
    daemon: Daemon,
) -> None:
    async with Client(daemon.address) as client:
        prompt = [*b"Smile: ", 0xF0, 0x9F]  # toy ids below 256 are bytes
        run = await answer(client, prompt, seed=1, max_new_tokens=20, ignore_eos=True)
        assert run.text == await detokenized(client, run.token_ids)
        assert "Smile" not in run.text


@pytest.mark.asyncio
async def test_generate_answers_what_stream_generate_streams(daemon: Daemon) -> None:
    fields: dict[str, Any] = {
        "input": {"text": PROMPT},
        "sampling": {"seed": 9},
        "stop": {"max_new_tokens": 30, "ignore_eos": True},
        "output": {"token_ids": True, "speculation_steps": True},
    }
    streamed = await _messages(daemon, **fields)
    async with stubs(daemon.address) as calls:
        whole = await calls.generation.Generate(pb.GenerateRequest(**fields))
    deltas = [message.delta for message in streamed if message.HasField("delta")]
    (sequence,) = whole.sequences
    assert sequence.text == "".join(delta.text for delta in deltas)
    assert list(sequence.token_ids) == [token for delta in deltas for token in delta.token_ids]
    assert list(sequence.steps) == [step for delta in deltas for step in delta.steps]
    assert sequence.completion_tokens == 30
    assert sequence.finish == streamed[-2].sequence_finished
    assert whole.usage == streamed[-1].finished.usage
    assert whole.started.seed == 9
    total, other = whole.speculation.total, streamed[-1].finished.speculation.total
    assert total.accepted_length_histogram == other.accepted_length_histogram


@pytest.mark.asyncio
async def test_generate_answers_without_text_where_none_is_asked_for(daemon: Daemon) -> None:
    async with stubs(daemon.address) as calls:
        request = pb.GenerateRequest(
            input={"text": PROMPT}, stop={"max_new_tokens": 3}, output={"text": False}
        )
        whole = await calls.generation.Generate(request)
    assert whole.sequences[0].text == ""
    assert whole.sequences[0].completion_tokens > 0


@pytest.mark.asyncio
async def test_a_drawn_seed_is_told_and_gives_the_same_tokens_again(daemon: Daemon) -> None:
    options: dict[str, Any] = {"temperature": 1.2, "max_new_tokens": 30, "ignore_eos": True}
    async with Client(daemon.address) as client:
        first = await answer(client, **options)
        again = await answer(client, seed=first.seed, **options)
        other = await answer(client, **options)
    assert again.seed == first.seed
    assert again.token_ids == first.token_ids
    assert other.seed != first.seed
    assert other.token_ids != first.token_ids


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
@pytest.mark.asyncio
async def test_a_seed_gives_the_same_tokens_alone_in_a_batch_and_late(
    daemon: Daemon, seed: int
) -> None:
    options: dict[str, Any] = {"temperature": 1.2, "max_new_tokens": 24, "ignore_eos": True}
    async with Client(daemon.address) as client:
        alone = await answer(client, seed=seed, **options)
        batch = await asyncio.gather(
            *(answer(client, seed=seed, **options) for _ in range(3)),
            *(answer(client, prompt, **options) for prompt in PROMPTS),
        )
        await asyncio.gather(*(answer(client, max_new_tokens=2) for _ in range(25)))
        late = await answer(client, seed=seed, **options)
        assert {run.token_ids for run in batch[:3]} == {alone.token_ids}
        assert late.token_ids == alone.token_ids
        assert (await answer(client, seed=seed ^ 1, **options)).token_ids != alone.token_ids


@pytest.mark.asyncio
async def test_a_greedy_run_does_not_depend_on_the_seed(daemon: Daemon) -> None:
    async with Client(daemon.address) as client:
        runs = [
            await answer(client, temperature=0, seed=seed, max_new_tokens=24) for seed in (1, 2)
        ]
    assert runs[0].token_ids == runs[1].token_ids


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-12])
@pytest.mark.asyncio
async def test_a_tiny_temperature_is_greedy(daemon: Daemon, temperature: float) -> None:
    async with Client(daemon.address) as client:
        greedy = await answer(client, temperature=0, max_new_tokens=24, ignore_eos=True)
        tiny = await answer(client, temperature=temperature, max_new_tokens=24, ignore_eos=True)
    assert tiny.token_ids == greedy.token_ids


@pytest.mark.asyncio
async def test_top_k_of_one_is_greedy_at_any_temperature_beside_any_other_top_k(
    daemon: Daemon,
) -> None:
    async with Client(daemon.address) as client:
        options: dict[str, Any] = {"max_new_tokens": 200, "ignore_eos": True}
        greedy = await answer(client, temperature=0, **options)
        sizes = (0, 1, 2, 64, 511, 512, 513, 2**31 - 1)
        runs = await asyncio.gather(
            *(answer(client, temperature=2, seed=1, top_k=top_k, **options) for top_k in sizes)
        )
    assert runs[1].token_ids == greedy.token_ids
    assert len({run.token_ids for run in (runs[0], *runs[5:])}) == 1, "off is off"


@pytest.mark.asyncio
async def test_the_daemon_s_acceptance_does_not_depend_on_earlier_requests(daemon: Daemon) -> None:
    options: dict[str, Any] = {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}
    repetitive = "Nobody speaks. " * 12
    async with Client(daemon.address) as client:
        first = await answer(client, repetitive, **options)
        await answer(client, PROMPTS[-1] + PROMPTS[1], **options)
        runs = [await answer(client, repetitive, **options) for _ in range(5)]
    assert first.speculation.total.draft_tokens > 0
    for run in runs:
        assert run.token_ids == first.token_ids
        assert run.steps == first.steps, "drafts and acceptance, step by step"


@pytest.mark.asyncio
async def test_chat_goes_through_the_template_of_the_model_file(daemon: Daemon) -> None:
    async with Client(daemon.address) as client:
        options: dict[str, Any] = {"temperature": 0, "max_new_tokens": 12}
        chat = await client.generate(messages=[{"role": "user", "content": "Hi"}], **options)
        text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        same = await client.generate(text, **options)
    assert chat.text == same.text
    assert chat.usage == same.usage


@pytest.mark.asyncio
async def test_the_log_tells_of_each_request_where_it_is_asked_to(toy: Path) -> None:
    async with running_daemon(toy, "--log-level", "DEBUG") as daemon:
        async with Client(daemon.address) as client:
            await answer(client, request_id="told", max_new_tokens=3, ignore_eos=True)
            stream = client.stream(PROMPT, request_id="left", ignore_eos=True)
            await anext(stream)
            stream.cancel()
            await quiet(client)
        assert "request told admitted" in daemon.log
        assert "request told ended: MAX_TOKENS after 3 tokens" in daemon.log
        assert "request left was left by its reader" in daemon.log
