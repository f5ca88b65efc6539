"""Where a generation ends: lengths, EOS, stop tokens and stop strings, inside accepted runs too.

Each case runs plainly, with drafters that know the answer and go on past every end, and with ones
that are always wrong. The end must be the same, to the token and to the character.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from specd_client import Client, Completion, FinishReason, InvalidRequest
from specd_client.v1 import model_pb2, model_pb2_grpc

from tests.e2e.calls import CONTEXT_LENGTH, PROMPT, answer, check_sums, detokenized, tokenized
from tests.e2e.drafters_under_test import RECORDING, spec
from tests.support.daemon import Daemon, daemon_process

KINDS = ("oracle", "greedy", "two", "wrong", "ragged")
DRAFTERS = (None, "ngram", *map(spec, KINDS))
SPECULATING = DRAFTERS[1:]


@dataclass
class Endings:
    """A daemon, and the file that tells its drafters the answers."""

    daemon: Daemon
    recording: Path
    texts: list[list[int]] = field(default_factory=list)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with Client(self.daemon.address) as client:
            yield client

    async def plain(
        self, client: Client, prompt: str | Sequence[int], **options: Any
    ) -> Completion:
        """A plain run, recorded for the drafters."""
        run = await answer(client, prompt, speculation=False, **options)
        start = await tokenized(client, prompt) if isinstance(prompt, str) else list(prompt)
        self.texts.append([*start, *run.token_ids])
        self.recording.write_text(json.dumps(self.texts))
        return run

    async def each(
        self, client: Client, prompt: str | Sequence[int], **options: Any
    ) -> list[Completion]:
        """The same request with every drafter and with none, all at once."""
        runs = await asyncio.gather(
            *(answer(client, prompt, **options, **_speculating(name)) for name in DRAFTERS)
        )
        for run in runs:
            check_sums(run)
        return runs


def _speculating(drafter: str | None) -> dict[str, Any]:
    return {"speculation": False} if drafter is None else {"drafters": [drafter]}


@pytest.fixture(scope="module")
def endings(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endings]:
    recording = tmp_path_factory.mktemp("endings") / "recording.json"
    flags = [part for name in SPECULATING for part in ("--drafter", str(name))]
    env, here = {RECORDING: str(recording)}, Path(__file__).parent
    with daemon_process(toy, *flags, env=env, cwd=here) as daemon:
        yield Endings(daemon, recording)


@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 7, 8, 9])
@pytest.mark.asyncio
async def test_max_new_tokens_is_exact(endings: Endings, max_new_tokens: int) -> None:
    options: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
    async with endings.client() as client:
        plain = await endings.plain(client, PROMPT, max_new_tokens=40, **options)
        for run in await endings.each(client, PROMPT, max_new_tokens=max_new_tokens, **options):
            assert run.token_ids == plain.token_ids[:max_new_tokens]
            assert run.finish_reason is FinishReason.MAX_TOKENS
            assert run.usage.completion_tokens == max_new_tokens


@pytest.mark.parametrize("left", [1, 2, 3, 9])
@pytest.mark.asyncio
async def test_the_context_is_filled_to_the_last_token_and_no_further(
    endings: Endings, left: int
) -> None:
    prompt = ([72, 101, 108, 111, 32] * CONTEXT_LENGTH)[: CONTEXT_LENGTH - left]
    options: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
    async with endings.client() as client:
        plain = await endings.plain(client, prompt, max_new_tokens=100, **options)
        for run in await endings.each(client, prompt, max_new_tokens=100, **options):
            assert run.token_ids == plain.token_ids
            assert len(run.token_ids) == left
            assert run.finish_reason is FinishReason.CONTEXT_LENGTH
        again = await answer(client, PROMPT, max_new_tokens=3, ignore_eos=True)
        assert len(again.token_ids) == 3


@pytest.mark.asyncio
async def test_without_max_new_tokens_the_whole_context_is_used(endings: Endings) -> None:
    prompt = [72] * 440
    async with endings.client() as client:
        plain = await endings.plain(client, prompt, seed=3, ignore_eos=True)
        for run in await endings.each(client, prompt, seed=3, ignore_eos=True):
            assert run.token_ids == plain.token_ids
            assert len(run.token_ids) == CONTEXT_LENGTH - len(prompt)
            assert run.finish_reason is FinishReason.CONTEXT_LENGTH


@pytest.mark.asyncio
async def test_max_new_tokens_beyond_the_context_is_the_context(endings: Endings) -> None:
    async with endings.client() as client:
        run = await answer(client, [5] * 510, max_new_tokens=2**32 - 1, ignore_eos=True)
        assert (len(run.token_ids), run.finish_reason) == (2, FinishReason.CONTEXT_LENGTH)


@pytest.mark.parametrize("length", [CONTEXT_LENGTH, CONTEXT_LENGTH + 1, 3 * CONTEXT_LENGTH])
@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.asyncio
async def test_a_prompt_that_leaves_no_room_is_refused_with_the_limit_that_get_model_tells(
    endings: Endings, length: int, as_text: bool
) -> None:
    async with endings.client() as client:
        model = model_pb2_grpc.ModelServiceStub(client.channel)
        told = (await model.GetModel(model_pb2.GetModelRequest())).model.context_length
        assert told == CONTEXT_LENGTH
        prompt: Any = [33] * length
        if as_text:
            prompt = "\x01" * length  # a byte without a merge: one token each
        with pytest.raises(InvalidRequest) as refused:
            await answer(client, prompt, max_new_tokens=1)
        assert refused.value.reason == "CONTEXT_LENGTH_EXCEEDED"
        assert refused.value.metadata == {"limit": str(told), "prompt_tokens": str(length)}


def _first_at(tokens: Sequence[int], low: int, high: int) -> int:
    """A place between `low` and `high` whose token does not occur before it."""
    return next(place for place in range(low, high) if tokens[place] not in tokens[:place])


@pytest.mark.asyncio
async def test_a_stop_token_inside_an_accepted_run_ends_it_there(endings: Endings) -> None:
    options: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
    async with endings.client() as client:
        plain = await endings.plain(client, PROMPT, max_new_tokens=40, **options)
        place = _first_at(plain.token_ids, 3, 30)
        stop = plain.token_ids[place]
        before = await detokenized(client, plain.token_ids[:place])
        for budget in (40, place + 3, place + 1):  # the last: stop and length meet
            options |= {"max_new_tokens": budget, "stop_token_ids": [stop]}
            for run in await endings.each(client, PROMPT, **options):
                assert run.token_ids == plain.token_ids[: place + 1]
                assert run.finish_reason is FinishReason.STOP_TOKEN
                assert run.matched_token_id == stop
                assert run.text == before


@pytest.mark.asyncio
async def test_a_stop_token_one_past_the_budget_is_not_reached(endings: Endings) -> None:
    options: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
    async with endings.client() as client:
        plain = await endings.plain(client, PROMPT, max_new_tokens=40, **options)
        place = _first_at(plain.token_ids, 3, 30)
        options |= {"max_new_tokens": place, "stop_token_ids": [plain.token_ids[place]]}
        for run in await endings.each(client, PROMPT, **options):
            assert run.token_ids == plain.token_ids[:place]
            assert run.finish_reason is FinishReason.MAX_TOKENS
            assert run.matched_token_id is None


async def _run_with(
    endings: Endings, client: Client, wanted: str, **options: Any
) -> tuple[dict[str, Any], Completion]:
    """A sampled plain run that ends with EOS, or has token 0 in it; and how to get it again."""
    for first in range(0, 320, 16):
        tries = [{"seed": seed, **options} for seed in range(first, first + 16)]
        runs = await asyncio.gather(
            *(answer(client, PROMPT, speculation=False, **chosen) for chosen in tries)
        )
        for chosen, run in zip(tries, runs, strict=True):
            is_it = {
                "eos": run.finish_reason is FinishReason.EOS_TOKEN and len(run.token_ids) > 8,
                "zero": 0 in run.token_ids[4:-8],
            }
            if is_it[wanted]:
                return chosen, await endings.plain(client, PROMPT, **chosen)
    raise AssertionError("the toy should produce every token now and then")


@pytest.mark.asyncio
async def test_eos_inside_an_accepted_run_ends_it_and_is_no_text(endings: Endings) -> None:
    async with endings.client() as client:
        chosen, plain = await _run_with(endings, client, "eos", max_new_tokens=120)
        eos = plain.token_ids[-1]
        before = await detokenized(client, plain.token_ids[:-1])
        for run in await endings.each(client, PROMPT, **chosen):
            assert run.token_ids == plain.token_ids
            assert (run.finish_reason, run.matched_token_id) == (FinishReason.EOS_TOKEN, eos)
            assert run.text == before
        # Now the drafters know how it would go on, and draft that.
        further = chosen | {"max_new_tokens": 150, "ignore_eos": True}
        on = await endings.plain(client, PROMPT, **further)
        for run in await endings.each(client, PROMPT, **chosen):
            assert run.token_ids == plain.token_ids
            assert run.speculation.total.accepted_draft_tokens < len(plain.token_ids)
        assert on.token_ids[: len(plain.token_ids)] == plain.token_ids
        assert len(on.token_ids) > len(plain.token_ids)


@pytest.mark.asyncio
async def test_with_ignore_eos_the_end_token_is_an_ordinary_one(endings: Endings) -> None:
    async with endings.client() as client:
        chosen, plain = await _run_with(endings, client, "eos", max_new_tokens=120)
        options = chosen | {"ignore_eos": True, "max_new_tokens": len(plain.token_ids) + 20}
        on = await endings.plain(client, PROMPT, **options)
        for run in await endings.each(client, PROMPT, **options):
            assert run.token_ids == on.token_ids
            assert run.token_ids[: len(plain.token_ids)] == plain.token_ids
            assert run.finish_reason is FinishReason.MAX_TOKENS


@pytest.mark.asyncio
async def test_a_draft_of_token_zero_is_a_draft_and_no_pad(endings: Endings) -> None:
    async with endings.client() as client:
        chosen, plain = await _run_with(
            endings, client, "zero", max_new_tokens=200, ignore_eos=True
        )
        for run in await endings.each(client, PROMPT, **chosen):
            assert run.token_ids == plain.token_ids
        oracle = await answer(client, PROMPT, **chosen, drafters=[spec("two")])
        # Every draft of two is accepted, those with a zero too; nothing beyond two is counted.
        assert {step.draft_tokens for step in oracle.steps} <= {0, 1, 2}
        assert all(step.accepted_draft_tokens == step.draft_tokens for step in oracle.steps)


def _string_at(text: str, low: int, length: int) -> str:
    """A piece of the text, from `low` on, that does not occur earlier."""
    for start in range(low, len(text) - length):
        if text.find(text[start : start + length]) == start:
            return text[start : start + length]
    raise AssertionError("every piece repeats")


@pytest.mark.parametrize("length", [1, 4, 30])
@pytest.mark.parametrize("include", [False, True])
@pytest.mark.asyncio
async def test_a_stop_string_ends_text_and_tokens_alike(
    endings: Endings, length: int, include: bool
) -> None:
    options: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_new_tokens": 60}
    async with endings.client() as client:
        plain = await endings.plain(client, PROMPT, **options)
        stop = _string_at(plain.text, 20, length)
        end = plain.text.find(stop) + (length if include else 0)
        options |= {"stop_strings": [stop], "include_stop_string": include}
        first, *others = await endings.each(client, PROMPT, **options)
        assert first.text == plain.text[:end]
        assert first.finish_reason is FinishReason.STOP_STRING
        assert first.matched_stop_string == stop
        # The last token completes the match, so without it the text does not hold it.
        assert plain.token_ids[: len(first.token_ids)] == first.token_ids
        assert stop not in await detokenized(client, first.token_ids[:-1])
        assert stop in await detokenized(client, first.token_ids)
        for run in others:
            assert (run.text, run.token_ids) == (first.text, first.token_ids)
            assert (run.finish_reason, run.matched_stop_string) == (FinishReason.STOP_STRING, stop)


@pytest.mark.asyncio
async def test_of_two_stop_strings_in_one_run_the_earlier_wins(endings: Endings) -> None:
    options: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_new_tokens": 60}
    async with endings.client() as client:
        plain = await endings.plain(client, PROMPT, **options)
        early = _string_at(plain.text, 20, 3)
        late = _string_at(plain.text, plain.text.find(early) + 4, 3)
        assert plain.text.find(late) > plain.text.find(early)
        for run in await endings.each(client, PROMPT, **options, stop_strings=[late, early]):
            assert run.matched_stop_string == early
            assert run.text == plain.text[: plain.text.find(early)]


@pytest.mark.asyncio
async def test_a_long_stop_string_that_never_comes_loses_nothing(endings: Endings) -> None:
    options: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_new_tokens": 30}
    async with endings.client() as client:
        plain = await endings.plain(client, PROMPT, **options)
        stops = [plain.text[-9:] + "!", plain.text[-1] + "?" * 200]
        for run in await endings.each(client, PROMPT, **options, stop_strings=stops):
            assert run.text == plain.text
            assert run.finish_reason is FinishReason.MAX_TOKENS


@pytest.mark.asyncio
async def test_an_answer_that_ends_in_half_a_character_is_sound_text(endings: Endings) -> None:
    # So hot that every token is about as likely: whatever the arithmetic, some open a character.
    options: dict[str, Any] = {"seed": 11, "ignore_eos": True, "temperature": 5}
    async with endings.client() as client:
        plain = await endings.plain(client, PROMPT, max_new_tokens=200, **options)
        # Toy ids below 256 are bytes; these open characters of two to four.
        halves = [n for n, token in enumerate(plain.token_ids) if 0xC2 <= token <= 0xF4]
        place = halves[1]
        for run in await endings.each(client, PROMPT, max_new_tokens=place + 1, **options):
            assert run.text.endswith("\ufffd")
            assert run.text == await detokenized(client, plain.token_ids[: place + 1])


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 255, 256, 257])
@pytest.mark.asyncio
async def test_prompts_around_page_and_chunk_boundaries_go_on_alike(
    endings: Endings, length: int
) -> None:
    prompt = [(7 * place + 3) % 509 for place in range(length)]
    options: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_new_tokens": 12}
    async with endings.client() as client:
        plain = await endings.plain(client, prompt, **options)
        for run in await endings.each(client, prompt, **options):
            assert run.token_ids == plain.token_ids
